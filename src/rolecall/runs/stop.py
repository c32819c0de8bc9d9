"""Stops a run from another thread."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Stop:
    """Ends a run from another thread, as Ctrl-C ends one in the main thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._end: Callable[[], object] | None = None
        self._told = False

    def end_now(self) -> None:
        with self._lock:
            self._told = True
            if self._end is not None:
                self._end()

    def ends(self, end: Callable[[], object]) -> None:
        """Set the function that stops the run; it is called at once if the run was told to stop
        before.
        """
        with self._lock:
            self._end = end
            if self._told:
                end()

    def over(self) -> None:
        """Note that the run has come to its end: there is nothing to stop any more."""
        with self._lock:
            self._end = None
