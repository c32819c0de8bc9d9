"""Keeps compiled loops on disk in a way that heals: an entry that is not whole is a missing one.

numba's own cache stops the process at an empty file, raises at one that is cut, and runs one whose
bytes have changed. It also refuses to compile where it finds no place to write, as in a container
with a random user.
"""

from __future__ import annotations

import io
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numba.core.caching import FunctionCache, IndexDataCacheFile

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
