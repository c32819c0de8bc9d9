"""What a run imports before it begins, which is most of the time that its start takes."""

from __future__ import annotations

import subprocess
import sys

SLOW = ("matplotlib", "pandas", "peft", "scipy.optimize", "sklearn")
WHAT = f"""
import sys
import rolecall.cli.one_run
print([name for name in {SLOW} if name in sys.modules])
from transformers.utils import is_scipy_available, is_sklearn_available
print(is_scipy_available() and is_sklearn_available())
"""


def test_a_run_begins_without_what_it_does_not_use():
    """They are installed here, and transformers still knows that."""
    done = subprocess.run([sys.executable, "-c", WHAT], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "True"]
