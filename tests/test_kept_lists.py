"""What transformers lists when it is imported is kept, and made again when something changes."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rolecall.runtime.kept_lists import LISTS, MODELS, PACKAGES, kept, of_models, state_of_path

SAME = f"""
import importlib.metadata, sys
from {LISTS} import PACKAGE_DISTRIBUTION_MAPPING as packages
from {LISTS} import {MODELS} as plain
models, folder = sys.argv[1:]
expected = plain(models)
del sys.modules["transformers"], sys.modules["{LISTS}"]
from rolecall.runtime.kept_lists import kept_lists
before, sys.pycache_prefix = importlib.metadata.{PACKAGES}, folder
with kept_lists():
    import transformers
    transformers.models
    from {LISTS} import PACKAGE_DISTRIBUTION_MAPPING, {MODELS}
sys.pycache_prefix = None
print({MODELS}(models) == {MODELS}(models + "/__init__.py") == expected)
print({MODELS}(models + "/qwen3") == expected["qwen3"], len(expected) > 100)
print(PACKAGE_DISTRIBUTION_MAPPING == packages, importlib.metadata.{PACKAGES} is before)
print([finder for finder in sys.meta_path if "rolecall" in type(finder).__module__])
print(transformers.Qwen3Config.__name__)
"""


@pytest.fixture
def models(tmp_path) -> Path:
    folder = tmp_path / "models"
    for name in ("bert", "qwen"):
        (folder / name).mkdir(parents=True)
        (folder / name / f"modeling_{name}.py").write_text(f"class {name}: ...")
    (folder / "__init__.py").write_text("")
    (tmp_path / "list.py").write_text("")
    return folder


def asked(models: Path, *, path: Path | None = None, kept: str = "kept") -> tuple[dict, int]:
    """What a process is told that begins now, and how often the list was made for it."""
    made = []

    def make(folder):
        made.append(folder)
        return {name.name: {frozenset({"torch"}): {name.name}} for name in Path(folder).iterdir()}

    found = of_models(make, models, models.parent / kept, models.parent / "list.py")
    assert found(path or models) == found(str(path or models))
    return found(path or models), len(made)


def test_transformers_is_told_what_it_would_have_found(tmp_path):
    import transformers

    models = Path(transformers.__file__).with_name("models")
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    for _ in range(2):  # made, and read
        done = subprocess.run(
            [sys.executable, "-c", SAME, str(models), str(tmp_path)],
            env=env, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert done.stdout.split() == [*["True"] * 5, "[]", "Qwen3Config"]
        assert len([*tmp_path.rglob("*.models"), *tmp_path.rglob("*.packages")]) == 2


def test_the_list_is_made_once(models, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    found, made = asked(models)
    assert made == 1
    assert asked(models) == (found, 0)
    assert asked(models, path=models / "__init__.py") == (found, 0)


@pytest.mark.parametrize("change", ["new file", "other text", "gone", "the function itself"])
def test_it_is_made_again_when_a_file_changes(models, monkeypatch, change):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    asked(models)
    if change == "new file":
        (models / "bert" / "modeling_more.py").write_text("")
    elif change == "other text":
        file = models / "bert" / "modeling_bert.py"
        kept = file.stat().st_mtime_ns
        file.write_text("class BERT: ...")
        os.utime(file, ns=(kept, kept + 1))
    elif change == "gone":
        (models / "qwen" / "modeling_qwen.py").unlink()
    else:
        (models.parent / "list.py").write_text("# another version")
    found, made = asked(models)
    assert made == 1
    assert asked(models) == (found, 0)


@pytest.mark.parametrize("content", [b"", b"\x00\xff", b"[1, 2]", b"[" * 99999, b'{"a": 1}'])
def test_a_broken_file_is_written_anew(models, monkeypatch, content):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    (models.parent / "kept").write_bytes(content)
    found, made = asked(models)
    assert made == 1
    assert asked(models) == (found, 0)


def test_nothing_is_written_where_python_keeps_nothing(models, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert asked(models)[1] == asked(models)[1] == 1
    assert not (models.parent / "kept").exists()


def test_it_is_no_error_where_nothing_can_be_written(models, monkeypatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    assert asked(models, kept="list.py/kept")[1] == 1, "a file is where the folder would be"


def test_packages_are_listed_again_when_something_is_installed(tmp_path, monkeypatch):
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.setattr(sys, "path", [*sys.path, "", str(site), str(tmp_path / "none")])
    monkeypatch.setattr(sys, "dont_write_bytecode", False)

    def listed():
        return kept(tmp_path / "kept", state_of_path(), importlib.metadata.packages_distributions)

    assert "brand_new" not in listed()
    info = site / "brand_new-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: brand-new\nVersion: 1.0\n")
    (info / "top_level.txt").write_text("brand_new\n")
    assert listed()["brand_new"] == ["brand-new"]
    assert listed() == importlib.metadata.packages_distributions()
