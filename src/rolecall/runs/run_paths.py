"""Says what a path on the command line means."""

from __future__ import annotations

from pathlib import Path


def is_run(path: Path) -> bool:
    """Return whether an argument means a run folder, there or not, and not a recipe or a config."""
    return path.is_dir() or (not path.exists() and len(path.parts) > 1 and path.suffix == "")
