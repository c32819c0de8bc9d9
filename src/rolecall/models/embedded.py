"""Finds the folders of the models inside the package by name."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path


def names() -> list[str]:
    root = Path(str(files("rolecall.tiny")))
    return sorted(path.parent.name for path in root.glob("*/model.safetensors"))


def folder(name: str) -> Path:
    """Raises ValueError with the names that exist."""
    path = Path(str(files("rolecall.tiny"))) / name
    if not (path / "model.safetensors").is_file():
        known = ", ".join(f"tiny:{n}" for n in names()) or "none"
        raise ValueError(f"there is no embedded model tiny:{name} (there are: {known})")
    return path
