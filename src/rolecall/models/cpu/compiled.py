"""Compiles the loops of this folder: those that Python calls, and what these are made of.

numba counts the references to each array where a function is entered and left, by atomic additions
that threads wait for: rotating a head of 32 numbers took 200 nanoseconds instead of 20 (measured,
two threads). And it keeps a loop on disk until the loop's own file changes, although it is made of
others, also of those in other files: a stale one can crash a process.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from numba import njit

LINEAR = "scipy.linalg"


def _import_numpy_of_numba() -> None:
    """Without SciPy's linear algebra, which numba imports to see whether it is there: that takes a
    fifth of a second. A loop that needs it imports it.
    """
    if LINEAR in sys.modules or find_spec("scipy") is None:
        return
    sys.modules[LINEAR] = None  # type: ignore[assignment]  # as if there were none
    try:
        from numba.np import arraymath
    finally:
        del sys.modules[LINEAR]
    arraymath._HAVE_BLAS = True


_import_numpy_of_numba()


def uncounted(loop: Callable[..., Any] | None = None, **options: Any) -> Any:
    """`njit` of what loops are made of: it counts no references, and so makes no arrays of its own
    (`loop_memory.py` has them).
    """
    return njit(loop, _nrt=False, **options)


def kept(loop: Callable[..., Any]) -> Any:
    """A loop that Python calls. It is kept until a source file of this folder changes."""
    compiled = njit(cache=True)(loop)
    compiled._cache._cache_file._source_stamp = _sources()
    return compiled


def is_kept(loop: Any) -> bool:
    """Whether it has been compiled here before, and not changed since."""
    return bool(loop._cache._cache_file._load_index())


@cache
def _sources() -> str:
    """A digest of the source files of this folder."""
    digest = sha256()
    for file in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()
