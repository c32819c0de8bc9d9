"""Compiles the loops of this folder: those that Python calls, and what these are made of.

numba counts the references to each array where a function is entered and left, by atomic additions
that threads wait for: rotating a head of 32 numbers took 200 nanoseconds instead of 20 (measured,
two threads). And it keeps a loop on disk until the loop's own file changes, although it is made of
others, also of those in other files: a stale one can crash a process (`loop_cache.py` has ours).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar, overload

from numba import njit, types
from numba.core.ccallback import CFunc

from rolecall.models.cpu.loop_cache import Loop, LoopCache, loop_cache

Result = TypeVar("Result")


@overload
def compile_inner(loop: Callable[..., Result]) -> Callable[..., Result]: ...
@overload
def compile_inner(
    *, fastmath: set[str] = ..., forceinline: bool = ..., error_model: str = ...
) -> Callable[[Callable[..., Result]], Callable[..., Result]]: ...
def compile_inner(loop: Loop | None = None, **options: set[str] | bool | str) -> Loop:
    """Compile with `njit` what loops are made of: it counts no references, and so makes no arrays
    of its own (`loop_memory.py` has them).
    """
    compiled: Loop = njit(loop, _nrt=False, **options)
    return compiled


def compile_outer(loop: Callable[..., Result]) -> Callable[..., Result]:
    """Compile a loop that Python calls; it is kept until a source file of this folder changes."""
    compiled: Any = njit(loop)
    cache = loop_cache(loop, stamp=_sources())
    if cache is not None:
        compiled._cache = cache  # as `enable_caching` does with numba's own
    return compiled


def kept_callback(
    loop: Callable[..., None], arguments: tuple[types.Type, ...], **options: bool
) -> CFunc[Callable[..., None]]:
    """Compile a loop that compiled code calls by its `address`.

    The loop returns nothing, and it is kept.
    """
    compiled: Any = CFunc(loop, (arguments, types.void), locals={}, options=options)
    cache = loop_cache(loop, stamp=_sources())
    if cache is not None:
        compiled._cache = cache
    compiled.compile()
    return compiled


def can_be_kept(loop: Any) -> bool:
    """Return whether the loop has a cache on disk."""
    return isinstance(loop._cache, LoopCache)


def is_kept(loop: Any) -> bool:
    """Return whether it has been compiled here before, and not changed since."""
    return can_be_kept(loop) and loop._cache.has_entries()


@cache
def _sources() -> str:
    """Return a digest of the source files of this folder."""
    digest = sha256()
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()
