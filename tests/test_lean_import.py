"""What commands import before they begin, which is most of the time that their start takes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import rolecall

SLOW = ("matplotlib", "pandas", "peft", "scipy.optimize", "sklearn")
WHAT = """
import sys
import rolecall.cli.{command}
print([name for name in {slow} if name in sys.modules])
"""
KNOWN = """
from transformers.utils import is_scipy_available, is_sklearn_available
print(is_scipy_available() and is_sklearn_available())
"""


def told(code: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@pytest.mark.parametrize("command", ["one_run", "plan"])
def test_a_command_begins_without_what_it_does_not_use(command):
    """They are installed here, and transformers still knows that."""
    assert told(WHAT.format(command=command, slow=SLOW) + KNOWN) == ["[]", "True"]


@pytest.mark.parametrize("command", ["train", "check"])
def test_a_config_is_checked_before_what_runs_need_is_imported(command):
    slow = (*SLOW, "transformers", "numba")
    assert told(WHAT.format(command=command, slow=slow)) == ["[]"]


def test_a_wrong_key_is_told_without_what_runs_need():
    code = """
import sys
from rolecall.cli.main import main
sys.argv = ["rolecall", "train", "math", "trainer.stepz=3"]
try:
    main()
except SystemExit as ended:
    print(ended.code, "transformers" in sys.modules)
"""
    assert told(code) == ["2 False"]


def test_loops_do_without_linear_algebra_and_those_of_a_users_own_have_it():
    code = """
import sys
import numpy as np
from rolecall.models.cpu import kernels
ones = np.ones(8, np.float32)
kernels.norm(ones, ones, 8, np.float32(0), ones.copy())
print("scipy.linalg" in sys.modules)
from numba import njit
from numba.np import arraymath
print(arraymath._HAVE_BLAS)
product = njit(lambda a, b: a @ b)(np.eye(2), np.ones((2, 2)))
print(product.sum(), "scipy.linalg" in sys.modules)
"""
    assert told(code) == ["False", "True", "4.0 True"]


def test_transformers_is_imported_in_one_place():
    """Whatever imports it first decides how. Peers of benchmarks and makers of the small models
    import it as anybody does.
    """
    source = Path(rolecall.__file__).parent
    plain = re.compile(r"^ *(from|import) transformers\b", re.M)
    found = {
        str(file.relative_to(source))
        for file in source.rglob("*.py")
        if plain.search(re.sub(r"if TYPE_CHECKING:\n(    .*\n)+", "", file.read_text()))
    }
    beside = {file for file in found if file.startswith(("bench/", "tiny/"))}
    assert found - beside == {"runtime/lean_import.py"}
