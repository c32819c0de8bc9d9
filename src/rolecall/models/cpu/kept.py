"""Keeps compiled loops on disk until a source file of this folder changes.

numba keeps one until its own file changes. Loops here are made of others, also of those in other
files, and a stale one can crash a process.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from numba import njit


def kept(loop: Callable[..., Any]) -> Any:
    """The loop as `njit(cache=True)` compiles it."""
    compiled = njit(cache=True)(loop)
    compiled._cache._cache_file._source_stamp = _sources()
    return compiled


@cache
def _sources() -> str:
    """A digest of the source files of this folder."""
    digest = sha256()
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()
