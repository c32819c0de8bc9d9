"""Sends signals to single processes only.

`os.kill` takes 0 and negative numbers for whole groups of processes, this one among them. The
kernel shows a process of another namespace as number 0.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress


def kill(pid: int) -> bool:
    """End a process at once; returns False for a number that is no single process's."""
    if pid <= 0:
        return False
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    return True
