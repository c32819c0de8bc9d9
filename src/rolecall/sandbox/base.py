"""Declares what a sandbox is asked to run (`Run`) and what was seen of it (`Ran`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Literal, Protocol

from rolecall.core.errors import InfrastructureError, RunEndingError

OWN_FILES = "__program__"  # how the names of the sandbox's own files begin
Limit = Literal["", "wall", "cpu", "memory", "disk"]


class SandboxError(InfrastructureError):
    """The sandbox itself failed: what the program would have done is unknown, not wrong."""


class SandboxRefusedError(SandboxError, RunEndingError):
    """The server would refuse any other run, too: a wrong address or token."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one run. Raises ValueError for a value that is not above 0."""

    wall_s: float = 10.0  # from the program's start to its end
    cpu_s: int = 60  # of one process; all together cannot use more than wall_s on every core
    memory_mb: int = 1024  # of all processes and the files they wrote, together
    processes: int = 64  # processes and threads alive at once
    disk_mb: int = 256  # written to the working directory and /tmp, together
    output_bytes: int = 65_536  # kept of each stream: half from its start, half from its end
    file_mb: int = 64  # fetched, all files together
    num_files: int = 64  # fetched

    def __post_init__(self) -> None:
        for name in self.__slots__:
            value = getattr(self, name)
            if not 0 < value < 1e9:
                raise ValueError(f"the limit {name} must be above 0 and finite, got {value}")


@dataclass(frozen=True, slots=True)
class Run:
    """A program, its input and its files. Raises ValueError for a path that leaves the directory.

    Paths are relative to the working directory, which is new and empty for each run.
    """

    code: str
    language: str = "python"
    stdin: str | None = None  # None: its end at once
    files: Mapping[str, bytes] = field(default_factory=dict)  # path -> content
    fetch: tuple[str, ...] = ()  # paths or globs; ** is any depth; what is missing is left out
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        for path in (*self.files, *self.fetch):
            check_path(path)


@dataclass(frozen=True, slots=True)
class Ran:
    """The end of a run. Of the program's own words, only stdout, stderr and files."""

    status: Literal["finished", "error", "timeout"]  # error: return code other than 0
    return_code: int | None  # minus the signal that ended it; None on a timeout
    stdout: str
    stderr: str
    wall_s: float
    limit: Limit = ""  # that ended it
    stdout_omitted: int = 0  # bytes cut out of the middle
    stderr_omitted: int = 0
    files: Mapping[str, bytes] = field(default_factory=dict)  # fetched: path -> content
    left_out: tuple[str, ...] = ()  # matched, but too large or too many


class Sandbox(Protocol):
    """Runs programs that nobody has read."""

    async def run(self, run: Run) -> Ran:
        """Run a program.

        Raises ValueError for an impossible run, SandboxError if the sandbox fails.
        """
        ...

    async def close(self) -> None: ...


def check_path(path: str) -> None:
    """Raise ValueError unless `path` names something inside the working directory."""
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts or "\0" in path:
        raise ValueError(
            f"a file's path must be relative to the working directory and stay in it, got {path!r}"
        )


def can_be_placed(path: str) -> bool:
    """Return whether a file that one run left may be a file of the next one."""
    try:
        check_path(path)
        path.encode()
    except (ValueError, UnicodeEncodeError):
        return False
    return not PurePosixPath(path).parts[0].startswith(OWN_FILES)


async def try_out(sandbox: Sandbox, limits: Limits) -> None:
    """Run an empty program, and close. Raises SandboxError where no program can be run."""
    try:
        await sandbox.run(Run(code="", limits=limits))
    finally:
        await sandbox.close()
