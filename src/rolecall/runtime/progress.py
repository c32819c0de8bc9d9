"""Shows what takes longer than a few seconds: what is being done, how far it is, and since when.

`with activity("evaluation on test", total=1680) as now: now.done += 1` shows nothing for the first
SHOWN_AFTER seconds. Then a terminal has a line that follows it, and anything else gets plain lines,
ever more seldom. All goes to stderr, so that what a command prints stays what it is.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeVar, cast

from rich.console import Console
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
T = TypeVar("T")
_END = object()


@dataclass(eq=False, slots=True, weakref_slot=True)
class Activity:
    """Something that is being done."""

    label: str
    total: int | None = None
    unit: str = ""
    done: int = 0
    count: Callable[[], int] | None = None  # where nobody adds up `done`; it ends at `total`
    started: float = field(default_factory=time.monotonic)
    next_line: float = SHOWN_AFTER  # of plain lines, in seconds since it started

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def line(self) -> str:
        """Return `evaluation on test: 120 of 1680 attempts, 0:00:30`."""
        share = f" {self.done} of {self.total} {self.unit}".rstrip()
        if self.total is None:
            share = f" {self.done} {self.unit}" if self.unit else ""
        return f"{self.label}:{share}{',' if share else ''} {timedelta(seconds=int(self.seconds))}"


class Board:
    """The activities of a process, and the thread that shows them.

    The board holds them weakly: an activity goes with whoever carries it out, also where that is
    abandoned and never ends.
    """

    def __init__(self, console: Callable[[], Console] = lambda: PlainConsole(stderr=True)) -> None:
        self.lock = threading.RLock()
        self._console = console
        self._running: list[weakref.ref[Activity]] = []
        self.presenter: Callable[[list[str]], None] | None = (
            None  # a live table, while there is one
        )
        self._thread: threading.Thread | None = None
        self._live: Live | None = None
        self._is_drawing = False

    @property
    def running(self) -> list[Activity]:
        """The activities that have not ended, the oldest first."""
        return [one for reference in self._running if (one := reference()) is not None]

    def begin(self, activity: Activity) -> None:
        with self.lock:
            self._running.append(weakref.ref(activity))
            if self._thread is None:
                self._thread = threading.Thread(target=self._follow, daemon=True, name="progress")
                self._thread.start()

    def end(self, activity: Activity) -> None:
        with self.lock:
            self._running = [weakref.ref(one) for one in self.running if one is not activity]
            if not self._running:
                self.clear()

    def clear(self) -> None:
        """Remove the line from the terminal, before something else is printed."""
        with self.lock:
            if self._live is not None and not self._is_drawing:
                live, self._live = self._live, None
                live.stop()

    def _follow(self) -> None:
        while True:
            time.sleep(TICK_S)
            with self.lock:
                self.refresh()
                if not self.running:
                    self.clear()
                    self._thread = None
                    return

    def refresh(self) -> None:
        """Count what has been done since, and show the activities that take long."""
        for one in self.running:
            self._look_up(one)
        self.show([one for one in self.running if one.seconds >= SHOWN_AFTER])

    def _look_up(self, one: Activity) -> None:
        if one.count is None or one.seconds < SHOWN_AFTER:
            return
        one.done = one.count()
        if one.done == one.total:
            self.end(one)

    def show(self, shown: list[Activity]) -> None:
        """Show these as they are now, in a live table, a terminal or plain lines."""
        console = self._console()
        if self.presenter is not None:
            self.presenter([one.line() for one in shown])
        elif not console.is_terminal:
            for one in shown:
                if one.seconds >= one.next_line:
                    console.print(one.line(), soft_wrap=True, highlight=False)
                    one.next_line = max(SECOND_LINE, one.next_line + min(one.next_line, SLOWEST))
        elif shown:
            self._draw("\n".join(one.line() for one in shown), console)

    def _draw(self, lines: str, console: Console) -> None:
        """Put the lines where the earlier ones stand; a line that is too wide is cut."""
        text = Text(lines, style="dim", no_wrap=True, overflow="ellipsis")
        self._is_drawing = True  # rich prints to refresh, which would clear what it draws
        try:
            if self._live is None:
                self._live = Live(
                    text, console=console, transient=True, auto_refresh=False,
                    redirect_stdout=False, redirect_stderr=False,
                )  # fmt: skip
                self._live.start()
            self._live.update(text, refresh=True)
        finally:
            self._is_drawing = False


_board = Board()
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
    """Show an activity that no block encloses, until `end` or until nobody holds it any more."""
    _board.begin(now)


def end(now: Activity) -> None:
    """Show it no more; it may have ended already."""
    _board.end(now)


def track(
    items: Iterable[T], label: str, *, total: int | None = None, unit: str = ""
) -> Iterator[T]:
    """Yield the items, and show that the next one is being made while it is.

    Nothing is shown while the caller has an item, so a loop that is left early leaves nothing.
    """
    now, rest = Activity(label, total, unit), iter(items)
    while True:
        _board.begin(now)
        try:
            item = next(rest, _END)
        finally:
            _board.end(now)
        if item is _END:
            return
        now.done += 1
        yield cast("T", item)


@contextmanager
def present_with(presenter: Callable[[list[str]], None]) -> Iterator[None]:
    """Let a live table show the lines, which owns the terminal meanwhile."""
    _board.clear()
    _board.presenter = presenter
    try:
        yield
    finally:
        _board.presenter = None
