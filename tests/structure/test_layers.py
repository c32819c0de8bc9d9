"""The structure stands: no import runs in a circle, and what users write needs no engine."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path

import networkx
import pytest

from rolecall.config.registry import import_object
from rolecall.core.errors import ConfigError

FILE = Path(__file__).resolve().parents[2] / "docs/draw_architecture.py"
spec = importlib.util.spec_from_file_location("draw_architecture", FILE)
drawing = importlib.util.module_from_spec(spec)
spec.loader.exec_module(drawing)

# What a person writes for a team of their own, and what it must work without.
WRITTEN = ("agents", "core", "environments", "grading", "rewards", "tools", "workflows")
TRAINS = ("models", "engines", "learners", "critics", "training", "setup", "storage", "cli", "runs")


@pytest.mark.parametrize("place", [drawing.room_of, drawing.folder_of, str])
def test_no_import_runs_in_a_circle(place):
    """Neither between rooms, nor between folders at any depth, nor between files."""
    graph = drawing.between({module: place(module) for module in drawing.modules()})
    circles = [part for part in networkx.strongly_connected_components(graph) if len(part) > 1]
    assert circles == []


def test_a_circle_is_found(tmp_path, monkeypatch):
    for room, other in (("one", "two"), ("two", "one")):
        (tmp_path / room).mkdir()
        (tmp_path / room / "part.py").write_text(f"from rolecall.{other} import part")
    monkeypatch.setattr(drawing, "ROOT", tmp_path)
    with pytest.raises(networkx.NetworkXUnfeasible):
        drawing.floors()


def test_what_users_write_needs_no_model_no_engine_and_no_trainer():
    found = [
        (module, other)
        for module, named in drawing.imports().items()
        for other in named
        if drawing.room_of(module) in WRITTEN and drawing.room_of(other) in TRAINS
    ]
    assert found == []


def test_few_files_lie_beside_the_folders():
    files = [path.name for path in drawing.ROOT.glob("*.py")]
    assert len(files) <= 9, files


def test_the_picture_is_of_this_code():
    text = FILE.with_name("architecture.svg").read_text()
    files = [drawing.room_of(module) for module in drawing.modules()]
    for room in {*files}:
        assert f">{room}</text>" in text, f"{room}: run docs/draw_architecture.py again"
        if (drawing.ROOT / room).is_dir():
            assert f">{files.count(room)} files</text>" in text
    assert text.count("<text") == 2 * len({*files})


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("agents.parsers", "boxed", "parse_boxed"),
        ("algorithms.groups", "left_out", "leave_one_out_mean"),
        ("environments.pettingzoo.export", "text_of", "observation_text"),
    ],
)
def test_an_old_name_says_its_new_one(module, old, new):
    path = f"rolecall.{module}"
    with pytest.raises(ImportError, match=f"^{path}.{old} is now {path}.{new}$"):
        getattr(importlib.import_module(path), old)
    with pytest.raises(ConfigError, match=f"^parser: {path}.{old} is now {path}.{new}$"):
        import_object(f"{path}:{old}", key="parser")
    with pytest.raises(AttributeError):
        vars(importlib.import_module(path))["__getattr__"]("no_such_name")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("types", "core.types"),
        ("errors", "core.errors"),
        ("interfaces.engine", "core.interfaces"),
        ("api", "runs.api"),
        ("trained_team", "runs.trained_team"),
        ("engines.parts", "engines.inputs"),
        ("learners.parts", "learners.inputs"),
        ("critics.parts", "critics.inputs"),
    ],
)
def test_an_old_path_says_where_its_contents_are_now(old, new):
    moved = old.removesuffix(".engine")
    with pytest.raises(ImportError, match=f"^rolecall.{moved} is now rolecall.{new}$"):
        importlib.import_module(f"rolecall.{old}")
