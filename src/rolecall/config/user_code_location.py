"""Finds the line of the user's own code that code objects, errors and tasks are at."""

from __future__ import annotations

import asyncio
import inspect
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from rolecall.core.errors import ConfigError, first_line

UserCallable = Callable[..., Any]  # a function or class that a config may name

OURS = str(Path(__file__).resolve().parents[1])
_LOOP = str(Path(asyncio.__file__).parent / "base_events.py")
_INSTALLED = [sysconfig.get_paths()[kind] for kind in ("stdlib", "purelib", "platlib")]
_LIBRARIES = (OURS, *(str(Path(path).resolve()) for path in _INSTALLED))
# Where a coroutine waits for another one of this process, and not for the world outside.
_PRIMITIVES = tuple(str(Path(asyncio.__file__).parent / name) for name in ("locks.py", "queues.py"))


def is_users(code: CodeType) -> bool:
    """Return whether code stands outside of this package, of Python and of installed packages."""
    return not code.co_filename.startswith(("<", *_LIBRARIES))


def locate_error(error: BaseException) -> str:
    """Return where user code was when the error arose, as in `team.py:12 in debate`; "" if it was
    not involved.
    """
    location, trace = "", error.__traceback__
    while trace is not None:
        if is_users(trace.tb_frame.f_code):
            location = _at(trace.tb_frame.f_code, trace.tb_lineno)
        trace = trace.tb_next
    return location


@contextmanager
def as_users_error(prefix: str) -> Iterator[None]:
    """Turn an error of the user's code, and any ValueError, into a ConfigError of one line.

    It begins with the prefix and ends with the user's line.
    """
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:  # the boundary to user code
        location = locate_error(error)
        if not location and not isinstance(error, ValueError):
            raise
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        where = f" ({location})" if location else ""
        text = first_line(error) if location else str(error)
        raise ConfigError(f"{prefix}{kind}{text}{where}") from error


def place_in(frame: FrameType | None, *, ours: tuple[str, ...] = ()) -> str:
    """Return the innermost place of a stack that is the user's; else one in these folders of ours.

    What stands below an event loop's own frames has started the loop, and waits for all of it.
    """
    own = ""
    while frame is not None and frame.f_code.co_filename != _LOOP:
        code = frame.f_code
        if is_users(code):
            return _at(code, frame.f_lineno)
        inside = code.co_filename.removeprefix(f"{OURS}/")
        if not own and inside != code.co_filename and inside.startswith(ours):
            own = _at(code, frame.f_lineno)
        frame = frame.f_back
    return own


def waits_for_another(task: asyncio.Task[Any]) -> str:
    """Return the user's line at which a task waits for a lock, an event or a queue, or ""."""
    awaited: Any = task.get_coro()
    location, innermost = "", ""
    while inspect.iscoroutine(awaited) and awaited.cr_frame is not None:
        frame = awaited.cr_frame
        innermost = frame.f_code.co_filename
        if is_users(frame.f_code):
            location = _at(frame.f_code, frame.f_lineno)
        elif innermost not in _PRIMITIVES:
            location = ""
        awaited = awaited.cr_await
    return location if innermost in _PRIMITIVES else ""


def locate_definition(call: UserCallable) -> str:
    """Return where a function, or the method that a class calls, begins: `reward.py:7`."""
    function = inspect.unwrap(call if inspect.isroutine(call) else type(call).__call__)
    code = getattr(function, "__code__", None)
    return f"{_shown(code.co_filename)}:{code.co_firstlineno}" if code else repr(call)


def locate_class(kind: type) -> str:
    """Return where a class begins, as in `mine.py:7`; its full name where it has no file."""
    try:
        file, (_, line) = inspect.getsourcefile(kind), inspect.getsourcelines(kind)
    except (TypeError, OSError):
        file = None
    return f"{kind.__module__}.{kind.__qualname__}" if file is None else f"{_shown(file)}:{line}"


def _at(code: CodeType, line: int) -> str:
    return f"{_shown(code.co_filename)}:{line} in {code.co_name}"


def _shown(file: str) -> str:
    """Return a path relative to the current folder, where that is shorter."""
    path, here = Path(file), Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
