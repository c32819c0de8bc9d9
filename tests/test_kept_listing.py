"""What transformers lists of its model files is kept, and made again when one of them changes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rolecall.runtime.kept_listing import LIST, LISTS, of_kept

SAME = f"""
import sys
from {LISTS} import {LIST} as plain
expected = plain(sys.argv[1])
del sys.modules["transformers"], sys.modules["{LISTS}"]
from rolecall.runtime.kept_listing import kept_listing
sys.pycache_prefix = sys.argv[2]
with kept_listing():
    import transformers
    from {LISTS} import {LIST} as kept
    transformers.models
sys.pycache_prefix = None
for folder in (sys.argv[1], sys.argv[1] + "/__init__.py"):
    print(kept(folder) == expected, len(expected) > 100)
print(kept(sys.argv[1] + "/qwen3") == expected["qwen3"])
print([finder for finder in sys.meta_path if "rolecall" in type(finder).__module__])
print(transformers.Qwen3ForCausalLM.__name__)
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

    found = of_kept(make, models, models.parent / kept, source=models.parent / "list.py")
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
        assert done.stdout.split() == [*["True"] * 5, "[]", "Qwen3ForCausalLM"]
        assert len(list(tmp_path.rglob("*.models"))) == 1


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


@pytest.mark.parametrize("content", [b"", b"\x00\xff", b"i\x01\x00\x00\x00"])
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
