"""The errors that a boundary raises when a part that the work depends on has failed."""

import difflib
import signal
from collections.abc import Iterator
from contextlib import contextmanager


class ConfigError(ValueError):
    """Keys, files or names that the user can put right: a line for each problem, exit status 2."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


def nearest(name: str, known: list[str]) -> str:
    """Return `; nearest: a, b`, or the whole list if no name is near."""
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return f"nearest: {', '.join(close)}" if close else f"there are: {', '.join(sorted(known))}"


class InfrastructureError(RuntimeError):
    """Raised where an outcome is unknown: an error on the episode, never a reward of 0."""


class RunEndingError(InfrastructureError):
    """No other episode would fare better: the run stops, and says why."""


class RunFailedError(RuntimeError):
    """The run came to its end, and what it was for did not happen."""


SAID = "a line says so already"  # note of an error that its command has printed


class StoppedError(Exception):
    """A signal told the process to end."""

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(f"stopped by {number.name}")
        self.status = 128 + number  # as shells report it


class TooLongError(ValueError):
    """A message of more bytes than are read."""


def first_error(error: BaseException) -> BaseException:
    """Return what went wrong first, where several tasks failed together."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


@contextmanager
def as_config_error(prefix: str) -> Iterator[None]:
    """Turn a ValueError into a ConfigError whose message begins with this prefix."""
    try:
        yield
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"{prefix}{error}") from error


def first_line(error: BaseException) -> str:
    """Return an error's first line, for a message of one line; its type where it says nothing."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
