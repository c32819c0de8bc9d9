"""What is drawn of the teams is what the code does."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from rolecall.config.registry import BUILT_IN

FILE = Path(__file__).resolve().parents[2] / "docs/draw_teams.py"
spec = importlib.util.spec_from_file_location("draw_teams", FILE)
drawing = importlib.util.module_from_spec(spec)
spec.loader.exec_module(drawing)
spec = importlib.util.spec_from_file_location(
    "generate_options", FILE.with_name("generate_options.py")
)
options = importlib.util.module_from_spec(spec)
spec.loader.exec_module(options)


@pytest.mark.parametrize("name", sorted(set(BUILT_IN["workflow"]) - {"external", "remote"}))
def test_the_picture_of_a_team_is_of_this_code(name, tmp_path):
    drawing.draw(name, tmp_path / "now.svg")
    drawn = FILE.with_name("teams") / f"{name}.svg"
    assert drawn.read_text() == (tmp_path / "now.svg").read_text(), "run docs/draw_teams.py"


def test_the_page_describes_every_team_as_it_is():
    assert FILE.with_name("teams.md").read_text() == drawing.page(), "run docs/draw_teams.py"


def test_the_options_page_says_what_the_code_takes():
    page = FILE.with_name("options.md").read_text()
    assert page == options.page(), "run docs/generate_options.py"
    for kind in ("workflow", "environment", "reward", "tool", "tracker"):
        for name in BUILT_IN[kind]:
            assert f"\n### {kind}: {name}\n" in page
    for option in ("`w_process`", "`start_s`", "`require_solution`", "`on_unparsable`"):
        assert f"\n| {option} | " in page
    for parser in ("parse_boxed", "parse_fence"):
        assert f"\n| `rolecall.agents.parsers:{parser}` | " in page
    for field in ("advantages", "parents", "headline"):
        assert f"\n| `{field}` | " in page


def test_an_option_without_a_meaning_is_an_error(monkeypatch):
    class Told:
        """size: tasks of a split."""

        def __init__(self, size: int = 1) -> None: ...

    class Untold(Told):
        """It has tasks."""

    monkeypatch.setattr(options.registry, "resolve", lambda kind, name, key: Told)
    assert "| `size` | `1` | `int` | tasks of a split. |" in options._section("tool", "x", skip=0)
    monkeypatch.setattr(options.registry, "resolve", lambda kind, name, key: Untold)
    with pytest.raises(ValueError, match="tool x: no line `size: meaning`"):
        options._section("tool", "x", skip=0)
