"""Ctrl-C at any moment of a command's start ends it with one line and status 130."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rolecall.runtime.interrupts import INTERRUPTED, LINE
from tests.support.evidence import leave_to_evidence

pytestmark = pytest.mark.slow

IMPORTED = re.compile(r"import time:.*\|\s*(.+)$")
PROGRESS = re.compile(r".*\d:\d\d:\d\d$")  # a plain line of what takes long, on a slow machine


def start(arguments: list[str], folder: Path, *, ignore: bool = False) -> subprocess.Popen[str]:
    """Start a command whose imports are lines on stderr."""
    handler = signal.SIG_IGN if ignore else signal.SIG_DFL  # jobs of scripts inherit SIG_IGN
    return subprocess.Popen(
        [sys.executable, "-X", "importtime", "-m", "rolecall", *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, handler),
    )


def interrupt_after(module: str, process: subprocess.Popen[str]) -> list[str]:
    """Send SIGINT once a module is imported; returns what the command wrote on stderr itself."""
    assert process.stderr is not None
    written = []
    for line in process.stderr:
        name = IMPORTED.match(line)
        if name is None:
            written.append(line.rstrip("\n"))
        elif name[1] == module:
            break
    else:
        pytest.fail(f"{module} is not imported: {written}")
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=120)
    written += [line for line in error.splitlines() if not IMPORTED.match(line)]
    return [line for line in written if not PROGRESS.match(line)]


MOMENTS = [
    ("train math", "rolecall.cli"),
    ("train math", "typer"),
    ("train math", "pydantic"),
    ("train math", "numpy"),
    ("train math", "omegaconf"),
    ("train math", "rolecall.runs.train"),
    ("train math", "numba"),
    ("train math", "transformers"),
    ("eval math", "torch"),
    ("eval math", "rolecall.runs.evaluate"),
    ("check math", "typer"),
    ("check math", "rolecall.runs.check"),
    ("check math", "numba"),
]


@pytest.mark.parametrize("moment", leave_to_evidence(MOMENTS, keep=[*MOMENTS[:5], MOMENTS[8]]))
def test_ctrl_c_while_a_command_starts_prints_one_line(moment, tmp_path):
    command, module = moment
    process = start(command.split(), tmp_path)
    written = interrupt_after(module, process)
    assert process.returncode == INTERRUPTED
    assert written == [LINE]


def test_a_command_started_with_ctrl_c_ignored_goes_on(tmp_path):
    process = start(["--version"], tmp_path, ignore=True)
    assert interrupt_after("typer", process) == []
    assert process.returncode == 0


RAISED = ["raise KeyboardInterrupt", "exec('raise KeyboardInterrupt')"]


@pytest.mark.parametrize("code", leave_to_evidence(RAISED, keep=RAISED[:1]))
def test_an_interrupt_anywhere_in_a_command_has_the_status_130(code, tmp_path):
    (tmp_path / "mine.py").write_text(code)
    config = "extends: math\nrewards: {'mine.py:reward': 1.0}\n"
    (tmp_path / "team.yaml").write_text(config)
    ended = subprocess.run(
        [sys.executable, "-m", "rolecall", "check", "team.yaml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (ended.returncode, ended.stderr) == (INTERRUPTED, f"{LINE}\n")


@pytest.mark.evidence
def test_ctrl_c_after_a_command_has_done_its_work_leaves_its_status(tmp_path):
    (tmp_path / "mine.py").write_text(
        "import atexit, time\n"
        "atexit.register(lambda: (print('ending', flush=True), time.sleep(3)))\n"
        "async def reward(episode, world):\n    return 0.0\n"
    )
    config = "extends: math\nrewards: {'mine.py:reward': 1.0}\n"
    (tmp_path / "team.yaml").write_text(config)
    process = subprocess.Popen(
        [sys.executable, "-m", "rolecall", "check", "team.yaml"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout is not None
    for line in process.stdout:
        if line == "ending\n":
            break
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=120)
    assert (process.returncode, error) == (0, "")


def test_a_users_program_that_imports_keeps_its_own_handler():
    code = (
        "import signal\n"
        "from rolecall.runtime.interrupts import ends_at_once\n"
        "# A process in the background of a shell begins with the signal ignored.\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "with ends_at_once():\n"
        "    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
