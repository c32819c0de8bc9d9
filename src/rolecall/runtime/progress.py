"""Shows what takes longer than a few seconds: what is being done, how far it is, and since when.

`with activity("evaluation on test", total=1680) as now: now.done += 1` shows nothing for the first
SHOWN_AFTER seconds. Then a terminal has a line that follows it, and anything else gets plain lines,
ever more seldom. All goes to stderr, so that what a command prints stays what it is.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta

from rich.live import Live
from rich.text import Text

from rolecall.runtime import consoles
from rolecall.runtime.consoles import PlainConsole

SHOWN_AFTER = 3.0  # seconds
TICK_S = 0.25
SECOND_LINE = (
    10.0  # seconds after which a plain line comes again; each next one takes twice as long
)
SLOWEST = 300.0


@dataclass(eq=False, slots=True)
class Activity:
    """Something that is being done."""

    label: str
    total: int | None = None
    unit: str = ""
    done: int = 0
    started: float = field(default_factory=time.monotonic)
    next_line: float = SHOWN_AFTER  # of plain lines, in seconds since it started

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def line(self) -> str:
        """Return `evaluation on test: 120 of 1680 attempts, 0:00:30`."""
        share = "" if self.total is None else f" {self.done} of {self.total} {self.unit}".rstrip()
        return f"{self.label}:{share}{',' if share else ''} {timedelta(seconds=int(self.seconds))}"


class _Board:
    """The activities of this process, and the thread that shows them."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.running: list[Activity] = []
        self.presenter: Callable[[list[str]], None] | None = (
            None  # a live table, while there is one
        )
        self._thread: threading.Thread | None = None
        self._live: Live | None = None

    def begin(self, activity: Activity) -> None:
        with self.lock:
            self.running.append(activity)
            if self._thread is None:
                self._thread = threading.Thread(target=self._follow, daemon=True, name="progress")
                self._thread.start()

    def end(self, activity: Activity) -> None:
        with self.lock:
            if activity in self.running:
                self.running.remove(activity)
            if not self.running:
                self.clear()

    def clear(self) -> None:
        """Remove the line from the terminal, before something else is printed."""
        with self.lock:
            if self._live is not None:
                live, self._live = self._live, None
                live.stop()

    def _follow(self) -> None:
        while True:
            time.sleep(TICK_S)
            with self.lock:
                if not self.running:
                    self._thread = None
                    return
                self._show([one for one in self.running if one.seconds >= SHOWN_AFTER])

    def _show(self, shown: list[Activity]) -> None:
        console = PlainConsole(stderr=True)
        if self.presenter is not None:
            self.presenter([one.line() for one in shown])
        elif not console.is_terminal:
            for one in shown:
                if one.seconds >= one.next_line:
                    console.print(one.line(), soft_wrap=True, highlight=False)
                    one.next_line = max(SECOND_LINE, one.next_line + min(one.next_line, SLOWEST))
        elif shown:
            text = Text("\n".join(one.line() for one in shown), style="dim")
            if self._live is None:
                self._live = Live(
                    text, console=console, transient=True, auto_refresh=False,
                    redirect_stdout=False, redirect_stderr=False,
                )  # fmt: skip
                self._live.start()
            self._live.update(text, refresh=True)


_board = _Board()
consoles.before_print.append(_board.clear)


@contextmanager
def activity(label: str, *, total: int | None = None, unit: str = "") -> Iterator[Activity]:
    """Show what is done inside, if it takes longer than SHOWN_AFTER seconds."""
    now = Activity(label, total, unit)
    _board.begin(now)
    try:
        yield now
    finally:
        _board.end(now)


def begin(now: Activity) -> None:
    """Show an activity that no block encloses, until `end`."""
    _board.begin(now)


def end(now: Activity) -> None:
    """Show it no more; it may have ended already."""
    _board.end(now)


@contextmanager
def presented_by(presenter: Callable[[list[str]], None]) -> Iterator[None]:
    """Let a live table show the lines, which owns the terminal meanwhile."""
    _board.clear()
    _board.presenter = presenter
    try:
        yield
    finally:
        _board.presenter = None
