"""Runs a config in a folder and kills its own process, as a power cut would, at a named point.

python killed_run.py CONFIG FOLDER POINT COUNT [THREADS]
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import torch

from rolecall.config.load import load
from rolecall.learners.optimizer import Stepper
from rolecall.setup.build import build
from rolecall.setup.plan import validate
from rolecall.storage import checkpoint
from rolecall.storage.journal import Journal
from rolecall.storage.run_folder import RunFolder
from rolecall.storage.whole_files import write_atomically
from rolecall.training import trainer


def kill_at(count: int, function, *, before=None):
    """`function`, whose `count`-th call ends the process after `before` was done."""
    calls = 0

    def wrapped(*args, **options):
        nonlocal calls
        calls += 1
        if calls == count:
            if before is not None:
                before(*args)
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **options)

    return wrapped


def arm(point: str, count: int) -> None:
    if point == "between episodes":
        Journal.append = kill_at(count, Journal.append)
    elif point == "in the middle of a journal line":
        whole = Journal.append
        Journal.append = kill_at(count, whole, before=lambda j, e: _cut(whole, j, e))
    elif point == "before the optimizer steps":
        Stepper.apply = kill_at(count, Stepper.apply)
    elif point == "after an update":
        trainer.metrics.rollout_metrics = kill_at(count, trainer.metrics.rollout_metrics)
    elif point == "in the middle of a checkpoint":
        torch.save = kill_at(count, torch.save)
    elif point == "before a checkpoint is renamed":
        checkpoint.os.replace = kill_at(count, os.replace)
    elif point == "before the pointer moves":
        checkpoint.point = kill_at(count, checkpoint.point)
    else:
        assert point == "never", point


def _cut(append, journal: Journal, episode) -> None:
    append(journal, episode)
    text = journal.path.read_text()
    journal.path.write_text(text[: len(text) - 40])


class Silent:
    def step(self, record):
        return None

    def evaluation(self, record):
        return None


def run(config_file: Path, folder: Path, point: str, count: int, threads: int = 1) -> None:
    torch.set_num_threads(threads)
    config = load(config_file)
    run_folder = RunFolder(folder)
    run_folder.start(config)
    made = build(validate(config))
    arm(point, count)
    asyncio.run(trainer.Trainer(made, run_folder, display=Silent()).train())
    write_atomically(run_folder.path / "finished", "yes")


if __name__ == "__main__":
    config_file, folder, point, *numbers = sys.argv[1:]
    run(Path(config_file), Path(folder), point, *map(int, numbers))
