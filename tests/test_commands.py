"""The commands that run the tests leave out none of them."""

from __future__ import annotations

import re
from pathlib import Path

from tests.conftest import EVIDENCE

ROOT = Path(__file__).resolve().parents[1]


def test_the_makefile_names_all_that_is_marked_as_evidence():
    """What only one of the two named would be run by no command."""
    named = re.search(r"^EVIDENCE := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert named is not None
    marked = [ROOT / "tests" / place for place in EVIDENCE]
    assert {ROOT / path for path in named[1].split()} == {
        place if place.is_dir() else place.with_suffix(".py") for place in marked
    }
    assert all((ROOT / path).exists() for path in named[1].split())
