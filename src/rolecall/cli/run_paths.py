"""What a path on the command line means: a run folder, and a checkpoint in it."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from rolecall.config.errors import ConfigError
from rolecall.storage import checkpoint
from rolecall.storage.run_folder import RunFolder

console = Console()


def is_run(path: Path) -> bool:
    """Whether an argument means a run folder, there or not, and not a recipe or a config."""
    return path.is_dir() or (not path.exists() and len(path.parts) > 1 and path.suffix == "")


def checkpoint_of(folder: RunFolder, name: str) -> Path:
    """Raises ConfigError where the run has no such checkpoint, CheckpointError if it is damaged."""
    found = (
        checkpoint.pointed(folder.checkpoints, name)
        if name in (checkpoint.LATEST, checkpoint.BEST)
        else folder.checkpoints / name
    )
    if found not in checkpoint.saved(folder.checkpoints):
        there = ", ".join(sorted(path.name for path in checkpoint.saved(folder.checkpoints)))
        raise ConfigError(f"{folder.path} has no checkpoint {name!r} (it has: {there or 'none'})")
    if wrong := checkpoint.damage(found):
        raise checkpoint.CheckpointError(f"{found}: {wrong}")
    return found
