"""The commands that run the tests leave out none of them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_makefile_names_all_that_is_marked_as_evidence():
    """What only one of the two named would be run by no command."""
    named = re.search(r"^EVIDENCE := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert named is not None
    tests = ROOT / "tests"
    marked = {
        file
        for file in tests.rglob("test_*.py")
        if re.search(r"^pytestmark = .*pytest\.mark\.evidence", file.read_text(), re.MULTILINE)
    }
    paths = [ROOT / path for path in named[1].split()]
    covered = {
        file for path in paths for file in (path.rglob("test_*.py") if path.is_dir() else [path])
    }
    assert covered == marked
    assert len(marked) > 5
