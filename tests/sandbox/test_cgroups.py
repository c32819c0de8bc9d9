"""Whose control groups are removed, and which processes in them are ended."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rolecall.runtime import signals
from rolecall.sandbox.cgroups import PREFIX, MemoryGroups

pytestmark = pytest.mark.slow

SWEEP = (
    "import sys, pathlib\nfrom rolecall.sandbox.cgroups import _sweep\n"
    "_sweep(pathlib.Path(sys.argv[1]))"
)
MAKE = (
    "import sys, pathlib\nfrom rolecall.sandbox.cgroups import MemoryGroups\n"
    "group = MemoryGroups(pathlib.Path(sys.argv[1])).new()\n"
    "print(group.path, flush=True)\nsys.stdin.read()"
)


def sweep(parent: Path) -> int:
    """The status of a process that sweeps, in a group of processes of its own."""
    done = subprocess.run([sys.executable, "-c", SWEEP, str(parent)], start_new_session=True)
    return done.returncode


def test_a_process_that_shows_as_0_does_not_end_the_sweeper(tmp_path):
    """Signal number 0 goes to the whole group of the sender."""
    left = tmp_path / f"{PREFIX}-{2**22 + 1}-0"
    left.mkdir()
    (left / "cgroup.procs").write_text("0\n-1\n")
    assert sweep(tmp_path) == 0
    assert left.exists()


def test_a_group_of_a_live_process_that_is_not_in_our_proc_is_kept(tmp_path):
    with subprocess.Popen(
        [sys.executable, "-c", MAKE, str(tmp_path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as maker:  # fmt: skip
        made = Path(maker.stdout.readline().strip())
        foreign = made.rename(tmp_path / f"{PREFIX}-{2**22 + 1}-0")
        (foreign / "cgroup.procs").write_text("")
        assert sweep(tmp_path) == 0
        assert foreign.exists()
        (foreign / "cgroup.procs").unlink()
        (foreign / "cgroup.kill").touch()  # of version 2
        assert sweep(tmp_path) == 0
        assert (foreign / "cgroup.kill").read_text() == ""
        maker.kill()
        maker.wait()
        assert sweep(tmp_path) == 0
        assert (foreign / "cgroup.kill").read_text() == "1"


def test_a_group_that_is_removed_leaves_no_open_file(tmp_path):
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        MemoryGroups(tmp_path).new().remove()
    assert len(os.listdir("/proc/self/fd")) == before
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("named", ["all of mine", "all", "this group"])
def test_no_signal_goes_to_a_group_of_processes(named):
    pid = {"all of mine": 0, "all": -1, "this group": -os.getpid()}[named]
    code = f"from rolecall.runtime.signals import kill; print(kill({pid}))"
    done = subprocess.run(
        [sys.executable, "-c", code], start_new_session=True, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "False\n")
    assert signals.kill(2**22 + 1)  # no such process
