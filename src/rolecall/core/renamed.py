"""Answers names that a module had before with the new ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def answer_old_names(module: str, new_names: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a module's `__getattr__`, which raises ImportError that names the new name."""

    def refuse(name: str) -> Any:
        if name in new_names:
            raise ImportError(f"{module}.{name} is now {module}.{new_names[name]}")
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return refuse
