"""Ends sandboxes that were being made when the process that made them was killed.

Linux kills bwrap with its maker. If that happens before the users of the sandbox are named, the
first process of the sandbox waits for bwrap for ever.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from rolecall.runtime.signals import kill

BWRAP = "bwrap"


def end_orphans(mark: str) -> None:
    """End the first processes of sandboxes without a bwrap above them.

    `mark`: an argument that the command lines of these sandboxes have.
    """
    for pid in find_orphans(mark):
        with contextlib.suppress(OSError):  # it is another user's
            kill(pid)


def find_orphans(mark: str) -> Iterator[int]:
    """Yield processes that wait for a bwrap that is gone."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            if _name(folder) != BWRAP or not _is_first(folder):
                continue
            arguments = (folder / "cmdline").read_bytes().split(b"\0")
            parent = Path("/proc", _status(folder)["PPid"])
            if mark.encode() in arguments and _name(parent) != BWRAP:
                yield int(folder.name)


def _is_first(folder: Path) -> bool:
    """Return whether a process is the first one of a namespace below ours."""
    numbers = _status(folder)["NSpid"].split()
    return len(numbers) > 1 and numbers[-1] == "1"


def _name(folder: Path) -> str:
    return (folder / "comm").read_text().strip()


def _status(folder: Path) -> dict[str, str]:
    lines = (folder / "status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}
