"""Ends a command at Ctrl-C with one line, also while it imports modules.

A KeyboardInterrupt that is raised in the middle of an import is unreliable: libraries catch it,
print it or raise another error for it. So while a command only imports, Ctrl-C ends the process at
once. While it works, KeyboardInterrupt is raised as usual, so that it can save and clean up.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType

INTERRUPTED = 130  # exit status, as shells report it
LINE = "rolecall: stopped by Ctrl-C"
_is_command = False  # in a user's program Ctrl-C is the user's


def end_at_once() -> None:
    """Let Ctrl-C end this process, which is a command, until `raise_interrupts` is called.

    A command started with SIGINT ignored, as by nohup, keeps ignoring it.
    """
    global _is_command
    _is_command = True
    _replace(signal.default_int_handler, _end)


def raise_interrupts() -> None:
    """Let Ctrl-C raise KeyboardInterrupt again."""
    _replace(_end, signal.default_int_handler)


@contextmanager
def ends_at_once() -> Iterator[None]:
    """Let Ctrl-C end the process while the block runs, if the process is a command."""
    is_changed = _is_command and _replace(signal.default_int_handler, _end)
    try:
        yield
    finally:
        if is_changed:
            raise_interrupts()


def ignore_once() -> None:
    """Ignore one Ctrl-C, for a command that has done its work and ends by itself.

    Libraries still run code at the exit, in which an interrupt ends in a traceback. A second one
    ends the process at once, where that code gets stuck.
    """
    for old in (signal.default_int_handler, _end):
        _replace(old, lambda *_: signal.signal(signal.SIGINT, signal.SIG_DFL))


def forget_interrupt() -> None:
    """Make the exit status count after a KeyboardInterrupt that was caught.

    CPython notes an interrupt that passes through `exec` or `eval` of a text, as it does where
    dataclasses are made, and `python -m` then dies by the signal whatever the exit status is. The
    next `eval` of a text clears the note.
    """
    eval("None")


def _replace(old: object, new: signal.Handlers | object) -> bool:
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGINT) is not old:
        return False
    signal.signal(signal.SIGINT, new)  # type: ignore[arg-type]
    return True


def _end(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a second Ctrl-C ends it if this gets stuck
    with suppress(Exception):
        _remove_progress()
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # such as a write to it that was interrupted
            stream.flush()
    with suppress(OSError):
        os.write(2, f"{LINE}\n".encode())
    os._exit(INTERRUPTED)


def _remove_progress() -> None:
    """Remove a line of progress from the terminal, where any module that shows one is loaded."""
    consoles = sys.modules.get("rolecall.runtime.consoles")
    for call in getattr(consoles, "before_print", ()):
        call()
