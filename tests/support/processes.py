"""Whether processes that a test has started are still there."""

from __future__ import annotations

from pathlib import Path


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
