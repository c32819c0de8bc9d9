"""Finds the folder of a base: a model inside the package, or one on this machine."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path


def names() -> list[str]:
    root = Path(str(files("rolecall.tiny")))
    return sorted(path.parent.name for path in root.glob("*/model.safetensors"))


def folder(name: str) -> Path:
    """Return the folder of an embedded model; raises ValueError that lists the models there are."""
    path = Path(str(files("rolecall.tiny"))) / name
    if not (path / "model.safetensors").is_file():
        available = ", ".join(f"tiny:{n}" for n in names()) or "none"
        raise ValueError(f"there is no embedded model tiny:{name} (there are: {available})")
    return path


def locate(base: str) -> str:
    """Return the folder of a base, or its hub name: `tiny:NAME`, then folders, then hub names.

    Raises ValueError for a folder or a model of the package that is not there.
    """
    if base.startswith("tiny:"):
        return str(folder(base.removeprefix("tiny:")))
    looks_local = base.startswith((".", "/", "~")) or base.count("/") != 1
    path = Path(base).expanduser()
    if path.is_dir():
        return str(path)
    if looks_local or path.exists():
        raise ValueError(f"base {base!r}: there is no such model folder")
    return base
