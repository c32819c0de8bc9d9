"""Writes what the library and others log to a file while a run goes on.

Handlers and levels that stand already, as in a notebook, stay as they are and see what they would
have seen without the file.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rolecall.runtime.secret_texts import scrub

FORMAT = "%(asctime)s %(levelname)s %(message)s"


class _Upwards(logging.Handler):
    """Hands records of its level and above on to the root logger, as propagation would."""

    def emit(self, record: logging.LogRecord) -> None:
        logging.getLogger().handle(record)


class _Others(logging.Handler):
    """Writes what is not ours, because ours is written already."""

    def __init__(self, target: logging.Handler) -> None:
        super().__init__()
        self.target = target

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.partition(".")[0] != "rolecall":
            self.target.handle(record)


class _WithoutSecrets(logging.Formatter):
    """Takes keys out of whatever anybody logs, tracebacks too."""

    def format(self, record: logging.LogRecord) -> str:
        return scrub(super().format(record))


@contextmanager
def log_to_file(file: Path) -> Iterator[None]:
    """While inside, the file gets what `rolecall` logs from INFO on, and what others log."""
    ours, root = logging.getLogger("rolecall"), logging.getLogger()
    level, propagates, seen = ours.level, ours.propagate, ours.getEffectiveLevel()
    writes, upwards = logging.FileHandler(file), _Upwards(seen)
    writes.setFormatter(_WithoutSecrets(FORMAT))
    others = _Others(writes)
    ours.addHandler(writes)
    root.addHandler(others)
    if propagates:
        ours.addHandler(upwards)
    ours.setLevel(min(seen, logging.INFO))
    ours.propagate = False
    try:
        yield
    finally:
        for handler in (writes, upwards):
            ours.removeHandler(handler)
        root.removeHandler(others)
        ours.setLevel(level)
        ours.propagate = propagates
        writes.close()
