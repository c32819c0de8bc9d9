"""Reads the end of what a process wrote."""

from __future__ import annotations

from pathlib import Path

LINES = 8
BYTES = 65_536  # of a log that are looked at


def last_lines(log: Path) -> list[str]:
    """Return the last lines; none of a file that is not there."""
    return [line.strip() for line in read_lines(log)][-LINES:]


def read_lines(log: Path, *, begins: int = 0) -> list[str]:
    """Return the lines near its end that say something, of those after byte `begins`."""
    lines = tail(log, begins=begins).splitlines()
    return [line.rstrip() for line in lines if line.strip(" ^~")]


def tail(log: Path, *, begins: int = 0) -> str:
    """Return the last bytes of those after `begins`; nothing of a file that is not there."""
    if not log.is_file():
        return ""
    with log.open("rb") as opened:
        opened.seek(max(begins, log.stat().st_size - BYTES))
        return opened.read().decode(errors="replace")
