"""Imports numba without SciPy's linear algebra, which loops here do not use.

numba imports it to see whether it is there, for a fifth of a second, before it compiles or loads
anything. A loop of a user's own that needs it still imports it.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec

from numba import njit as njit

LINEAR = "scipy.linalg"


def _look_without() -> None:
    if LINEAR in sys.modules or find_spec("scipy") is None:
        return
    sys.modules[LINEAR] = None  # type: ignore[assignment]  # as if there were none
    try:
        from numba.np import arraymath
    finally:
        del sys.modules[LINEAR]
    arraymath._HAVE_BLAS = True


_look_without()
