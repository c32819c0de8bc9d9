"""Compiled loops that are kept on disk: not when what they are made of has changed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rolecall.models.cpu import compiled

INNER = """
from numba import njit

@njit
def number():
    return {number}
"""
OUTER = """
from folder.inner import number
from folder.compiled import compile_outer

@compile_outer
def twice():
    return 2 * number()

print(twice(), sum(twice.stats.cache_hits.values()))
"""


def told(folder: Path) -> str:
    command = [sys.executable, "-c", "import folder.outer"]
    run = subprocess.run(command, cwd=folder.parent, capture_output=True, text=True, check=True)
    return run.stdout


@pytest.mark.slow
@pytest.mark.evidence
def test_a_loop_is_compiled_anew_when_one_it_is_made_of_changes(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "compiled.py").write_text(Path(compiled.__file__).read_text())
    (folder / "outer.py").write_text(OUTER)
    (folder / "inner.py").write_text(INNER.format(number=3))
    assert [told(folder), told(folder)] == ["6 0\n", "6 1\n"]
    (folder / "inner.py").write_text(INNER.format(number=42))
    assert [told(folder), told(folder)] == ["84 0\n", "84 1\n"]
