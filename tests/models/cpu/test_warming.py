"""A process beside a first run compiles what its first update needs."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rolecall.models.cpu.warming import SAMPLING, TRAINING

MODULE = "rolecall.models.cpu.warming"
STARTED = f"""
from {MODULE} import begin
print(begin().wait())
"""
COUNTED = """
from rolecall.models.cpu.compiled import is_kept
from rolecall.models.cpu.warming import SAMPLING, TRAINING
for loops in (TRAINING, SAMPLING):
    print(sum(map(is_kept, loops)), "of", len(loops))
"""
TRAINED = """
from pathlib import Path
from numba.core.dispatcher import Dispatcher
from rolecall_lab.bench.child import set_up
from rolecall.models.cpu import layer_loops, tree_attention
from rolecall.models.cpu.warming import begin

print("begun", begin())
set_up("update", "ours", size="smoke", folder=Path())(0)
for module in (layer_loops, tree_attention):
    for name, loop in vars(module).items():
        if isinstance(loop, Dispatcher) and loop.__module__ == module.__name__ and loop.signatures:
            hits, misses = loop.stats.cache_hits, loop.stats.cache_misses
            print("loop", name, sum(hits.values()), sum(misses.values()))
"""


def run(folder: Path, *command: str, errors: bool = False) -> str:
    places = {"NUMBA_CACHE_DIR": str(folder / "numba"), "XDG_CACHE_HOME": str(folder / "cache")}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder, env=os.environ | places, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stderr if errors else done.stdout


@pytest.mark.slow
@pytest.mark.evidence  # it compiles all loops anew, which takes half a minute
def test_a_run_finds_all_loops_that_train_compiled(tmp_path):
    assert run(tmp_path, "-c", STARTED) == "0\n"
    training = run(tmp_path, "-c", COUNTED).splitlines()[0]
    assert training == f"{len(TRAINING)} of {len(TRAINING)}"
    told = run(tmp_path, "-c", TRAINED).splitlines()
    assert told[0] == "begun None"
    loops = {line.split()[1]: line.split()[2:] for line in told if line.startswith("loop ")}
    assert {"begin", "begin_backward", "finish", "finish_backward", "forward", "backward"} <= {
        *loops
    }
    assert {tuple(counts) for counts in loops.values()} == {("1", "0")}


def test_a_second_process_leaves_it_to_the_first(tmp_path):
    folder = tmp_path / "cache/rolecall"
    folder.mkdir(parents=True)
    with (folder / "warming.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run(tmp_path, "-m", MODULE)
    assert list(tmp_path.rglob("*.nbc")) == []


@pytest.mark.slow
@pytest.mark.evidence  # it compiles all loops anew, which takes half a minute
def test_a_first_run_shows_how_many_of_its_loops_are_compiled(tmp_path):
    """All that are counted have been compiled when it has ended, so that the count is reached."""
    command = "-m rolecall train math_alone trainer.steps=1 rollout.groups=2 evaluation.tasks=2"
    errors = run(tmp_path, *command.split(), "--output", str(tmp_path / "run"), errors=True)
    line = rf"compiling loops, once on this machine: (\d+) of {len(TRAINING + SAMPLING)} loops"
    counts = re.findall(line, errors)
    assert counts
    assert [int(one) for one in counts] == sorted(map(int, counts))
    kept = run(tmp_path, "-c", COUNTED).splitlines()
    assert kept == [f"{len(loops)} of {len(loops)}" for loops in (TRAINING, SAMPLING)]
