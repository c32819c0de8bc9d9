"""Makes a run folder of its own that goes on from a checkpoint of another run.

It begins with a copy of the checkpoint and of the records of all steps up to it; the other run's
folder stays as it is. `fork.json` says which run and step it is a fork of.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from rolecall.core.errors import ConfigError
from rolecall.core.json_types import JsonObject
from rolecall.runtime.written_folders import new_folder_beside
from rolecall.storage import checkpoint
from rolecall.storage.run_folder import FORK, RunFolder


def fork(source: Path, name: str, output: Path | None) -> RunFolder:
    """Make the folder of a fork, from a checkpoint such as step-4 or best.

    Raises ConfigError where the run has no such checkpoint, and where the folder is not empty.
    """
    original = RunFolder.existing(source)
    with checkpoint.held(original, name) as saved:
        step = checkpoint.checkpoint_step(saved)
        record: JsonObject = {
            "run": str(original.path.resolve()),
            "step": step,
            "checkpoint": checkpoint.identity(saved),
        }
        folder = RunFolder(output or _free_path(source, step))
        folder.check_place()
        if folder.path.exists() and any(folder.path.iterdir()):
            raise ConfigError(
                f"{folder.path} is not empty; choose another --output for the fork (one that was "
                f"stopped continues with: rolecall train {folder.path})"
            )
        with new_folder_beside(folder.path) as aside:
            _copy(original, saved, aside, record)
            if folder.path.exists():
                folder.path.rmdir()
            os.replace(aside, folder.path)
    return folder


def _free_path(source: Path, step: int) -> Path:
    """Return `runs/mine-step-4`, or a numbered one where there is such a folder."""
    first = source.resolve().parent / f"{source.resolve().name}-step-{step}"
    path, number = first, 1
    while path.exists():
        number += 1
        path = first.with_name(f"{first.name}-{number}")
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def _copy(original: RunFolder, saved: Path, aside: Path, record: JsonObject) -> None:
    copied, step = RunFolder(aside), checkpoint.checkpoint_step(saved)
    shutil.copytree(saved, copied.checkpoints / saved.name)
    checkpoint.point(copied.checkpoints, checkpoint.LATEST, step)
    best = checkpoint.follow_pointer(original.checkpoints, checkpoint.BEST)
    if best is not None and checkpoint.checkpoint_step(best) <= step:
        if best.name != saved.name:
            shutil.copytree(best, copied.checkpoints / best.name)
        checkpoint.point(copied.checkpoints, checkpoint.BEST, checkpoint.checkpoint_step(best))
    for line in original.read_metrics():
        if line["step"] <= step:
            copied.append_metrics(line)
    shutil.copy(original.config, copied.config)
    (aside / FORK).write_text(json.dumps(record, indent=2) + "\n")
    changes = {"fork": [record["run"], f"step-{step}"]}
    copied.chapters.write_text(json.dumps({"after_step": step, "changes": changes}) + "\n")


def check_steps(original: RunFolder, name: str, steps: int) -> None:
    """Check that a fork has steps left to train; raises ConfigError otherwise."""
    with checkpoint.held(original, name) as saved:
        done = checkpoint.checkpoint_step(saved)
    if steps <= done:
        raise ConfigError(
            f"trainer.steps: {name} has {done} steps behind it, and {steps} are asked for; write "
            f"more, such as trainer.steps={done + steps}"
        )
