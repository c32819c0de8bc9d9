"""Compiles the loops of this folder: those that Python calls, and what these are made of.

numba counts the references to each array where a function is entered and left, by atomic additions
that threads wait for: rotating a head of 32 numbers took 200 nanoseconds instead of 20 (measured,
two threads). And it keeps a loop on disk until the loop's own file changes, although it is made of
others, also of those in other files: a stale one can crash a process (`LoopCache` has ours).
"""

from __future__ import annotations

import io
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

from numba import njit, types
from numba.core.caching import FunctionCache, IndexDataCacheFile
from numba.core.ccallback import CFunc

if TYPE_CHECKING:
    from numba.core.base import BaseContext
    from numba.core.compiler import CompileResult
    from numba.core.typing.templates import Signature


Loop = Callable[..., Any]  # a Python function that numba compiles

notices = logging.getLogger("rolecall.notices")
DIGEST = 32  # bytes, at the end of each file
_told: set[str] = set()


class CheckedFiles(IndexDataCacheFile):
    """Files that end with a digest of what is before it, which pickle does not read."""

    def _load_index(self) -> dict[tuple[Signature, str, str], str]:
        if not is_whole(Path(self._index_path)):
            return {}
        index: dict[tuple[Signature, str, str], str] = super()._load_index()
        return index

    def _load_data(self, name: str) -> CompileResult | None:
        if not is_whole(Path(self._data_path(name))):
            raise OSError(f"{name} is damaged")  # numba then compiles, and writes it anew
        return super()._load_data(name)

    @contextmanager
    def _open_for_write(self, filepath: str) -> Iterator[io.BytesIO]:
        content = io.BytesIO()
        yield content
        with super()._open_for_write(filepath) as file:
            file.write(content.getvalue() + sha256(content.getvalue()).digest())


class LoopCache(FunctionCache):
    """The cache of one loop."""

    def __init__(self, loop: Loop, *, stamp: str) -> None:
        """`stamp`: of all that the loop is made of.

        Raises RuntimeError without a place to write.
        """
        super().__init__(loop)
        base = self._impl.filename_base
        self._cache_file = CheckedFiles(self.cache_path, base, source_stamp=stamp)

    def has_entries(self) -> bool:
        """Return whether the loop has been compiled here before, and not changed since."""
        return bool(self._cache_file._load_index())

    def load_overload(self, sig: Signature, target_context: BaseContext) -> CompileResult | None:
        try:
            return super().load_overload(sig, target_context)
        except Exception as error:  # whatever stands there, it can be compiled again
            say_once(
                f"a compiled loop in {self.cache_path} cannot be read ({error}); it is made anew"
            )
            return None

    def save_overload(self, sig: Signature, data: CompileResult) -> None:
        try:
            super().save_overload(sig, data)
        except OSError as error:
            say_once(f"compiled loops are not kept, every start compiles them: {error}")


def loop_cache(loop: Loop, *, stamp: str) -> LoopCache | None:
    """Return the cache of a loop; None, and a message, if there is no folder to write to."""
    try:
        return LoopCache(loop, stamp=stamp)
    except RuntimeError:
        say_once(
            "compiled loops are not kept, every start compiles them: neither the package's folder "
            "nor the home folder can be written; set NUMBA_CACHE_DIR to a folder that can"
        )
        return None


def is_whole(file: Path) -> bool:
    """Return whether a file ends with its digest and belongs to us, root or the installer."""
    try:
        with file.open("rb") as opened:
            owner = os.fstat(opened.fileno()).st_uid
            content = opened.read()
    except OSError:
        return False
    if owner not in (0, os.geteuid(), Path(__file__).stat().st_uid):
        return False
    return sha256(content[:-DIGEST]).digest() == content[-DIGEST:]


def say_once(line: str) -> None:
    if line not in _told:
        _told.add(line)
        notices.warning("%s", line)


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
