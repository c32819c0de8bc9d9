"""Says whether a run is being trained, without touching the lock that its trainer needs."""

from __future__ import annotations

import os
import re
from pathlib import Path

from rolecall.storage.run_folder import LOCK
from rolecall.watch.models import Status


def judge_status(folder: Path, *, step: int, steps: int) -> Status:
    """Return what a run does: `step` steps are done of `steps`.

    A lock, even a shared one for a moment, could make a trainer fail that starts in that moment;
    so the process that the lock file names is looked at: it trains if it holds the file open.
    """
    if holds_lock(folder / LOCK):
        return "running"
    if not step:
        return "not started"
    return "finished" if step >= steps else "stopped"


def holds_lock(file: Path) -> bool:
    """Return whether the process that a lock file names has it open.

    Of a process of another user only its being there can be seen.
    """
    number = _read_process(file)
    if number is None:
        return False
    links = Path(f"/proc/{number}/fd")
    try:
        own = file.stat()
        for link in links.iterdir():
            try:
                if os.path.samestat(link.stat(), own):
                    return True
            except OSError:  # it was closed meanwhile
                continue
    except PermissionError:
        return True
    except OSError:
        return False
    return False


def _read_process(file: Path) -> int | None:
    try:
        with file.open() as opened:
            match = re.search(r"process (\d{1,9})\b", opened.read(64), re.ASCII)
    except (OSError, UnicodeDecodeError):
        return None
    return int(match[1]) if match else None
