"""Reads the end of what a process wrote."""

from __future__ import annotations

from pathlib import Path

LINES = 8
BYTES = 65_536  # of a log that are looked at


def last_lines(log: Path) -> list[str]:
    """The last lines that say something; none of a file that is not there."""
    return [line.strip() for line in tail(log).splitlines() if line.strip(" ^~")][-LINES:]


def tail(log: Path) -> str:
    """Its last bytes; nothing of a file that is not there."""
    if not log.is_file():
        return ""
    with log.open("rb") as opened:
        opened.seek(max(0, log.stat().st_size - BYTES))
        return opened.read().decode(errors="replace")
