"""Ends a process with the one that started it, however that ends."""

from __future__ import annotations

import ctypes
import signal

PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Let the kernel kill this process when the thread that started it ends, even while stopped.

    Whoever asks for it looks afterwards whether the parent was gone before. Raises OSError.
    """
    if ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError("prctl(PR_SET_PDEATHSIG) failed")
