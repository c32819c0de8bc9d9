"""Says in sentences what is wrong with a run, with the key to change and links that show it."""

from __future__ import annotations

from collections.abc import Sequence

from rolecall.core.json_types import Record
from rolecall.watch.models import Advice
from rolecall.watch.runs import WatchedRun


def advise_step(run: WatchedRun, step: int, rows: Sequence[Record]) -> list[Advice]:
    """Return what one step shows."""
    return []


def advise_run(run: WatchedRun) -> list[Advice]:
    """Return what the steps of a run show, the newest advice first."""
    return []
