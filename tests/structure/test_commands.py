"""The commands that run the tests leave out none of them."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_make_evidence_collects_every_file_that_holds_some():
    """A row that is marked in a file that is not collected would be run by no command."""
    show = ["make", "--no-print-directory", "--eval", "show: ; @echo $(EVIDENCE)", "show"]
    done = subprocess.run(show, cwd=ROOT, capture_output=True, text=True, check=True)
    marked = {
        str(file.relative_to(ROOT))
        for file in (ROOT / "tests").rglob("test_*.py")
        if re.search(r"mark\.evidence|leave_to_evidence\(", file.read_text())
    }
    assert marked <= set(done.stdout.split())
    assert len(marked) > 20


def test_rows_are_left_to_evidence_in_the_files_of_their_tests():
    """The Makefile would not see a mark that another file sets."""
    others = [
        file.name
        for file in (ROOT / "tests").rglob("*.py")
        if not file.name.startswith("test_") and "evidence" in file.read_text()
    ]
    assert others == ["evidence.py"]
