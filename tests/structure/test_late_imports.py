"""What commands import before they begin, which is most of the time that their start takes."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.sources import source_files
from tests.support.evidence import leave_to_evidence

pytestmark = pytest.mark.slow

SLOW = ("matplotlib", "peft", "rolecall_lab")
WHAT = """
import sys
import rolecall.runs.{command}
print([name for name in {slow} if name in sys.modules])
"""


def told(code: str) -> list[str]:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


@pytest.mark.parametrize("command", leave_to_evidence(["one_run", "plan"], keep=["one_run"]))
def test_a_command_begins_without_what_it_does_not_use(command):
    assert told(WHAT.format(command=command, slow=SLOW)) == ["[]"]


@pytest.mark.parametrize("command", leave_to_evidence(["train", "check"], keep=["train"]))
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


@pytest.mark.evidence
def test_a_training_run_imports_nothing_of_the_lab(tmp_path):
    code = f"""
import sys
from rolecall.cli.main import main
few = ["trainer.steps=1", "evaluation.tasks=1", "evaluation.samples=1"]
sys.argv = ["rolecall", "train", "math", *few, "--output", {str(tmp_path / "run")!r}]
try:
    main()
except SystemExit as ended:
    print(ended.code)
print([name for name in sys.modules if name.startswith("rolecall_lab")])
"""
    assert told(code)[-1] == "[]"


def test_no_file_of_the_package_imports_the_lab():
    found = {
        name
        for name, file in source_files()
        if not name.startswith("rolecall_lab/")
        and re.search(r"(from|import) rolecall_lab", file.read_text())
    }
    assert found == set()
