"""Makes a control group for the memory of each sandbox.

Groups are made below the one this process is in, so limits that hold for us hold for them too.
Version 2 allows that only where no process is; there they are made beside our own.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rolecall.runtime.own_files import is_own_folder
from rolecall.runtime.signals import kill

PREFIX = "rolecall"
MOST_BUFFERS = 16 << 20  # bytes of TCP's, where they are counted apart
TRIES = 100  # to make a group
NUMBERS = itertools.count()  # of the groups that this process made


@dataclass(frozen=True, slots=True)
class MemoryGroup:
    """The processes and tmpfs files of one sandbox."""

    path: Path
    lock: int | None = None  # that says to other processes that this one still needs the group

    def join(self, pid: int) -> None:
        (self.path / "cgroup.procs").write_text(str(pid))

    def limit(self, num_bytes: int) -> None:
        """Memory and swap together; beyond it the kernel ends the largest process."""
        if (self.path / "memory.max").exists():
            (self.path / "memory.max").write_text(str(num_bytes))
            with contextlib.suppress(FileNotFoundError):  # a kernel without swap accounting
                (self.path / "memory.swap.max").write_text("0")
            return
        (self.path / "memory.limit_in_bytes").write_text(str(num_bytes))
        # Version 1 counts the buffers of TCP apart from all other memory.
        with contextlib.suppress(FileNotFoundError):  # a kernel without them
            buffers = min(MOST_BUFFERS, num_bytes // 8)
            (self.path / "memory.kmem.tcp.limit_in_bytes").write_text(str(buffers))
        with contextlib.suppress(FileNotFoundError):
            (self.path / "memory.memsw.limit_in_bytes").write_text(str(num_bytes))

    def kills(self) -> int:
        """Return how many processes the kernel ended because of the limit."""
        new = self.path / "memory.events"
        text = (new if new.exists() else self.path / "memory.oom_control").read_text()
        counts = dict(line.split() for line in text.splitlines())
        return int(counts.get("oom_kill", 0))

    def remove(self) -> None:
        """Remove the group; raises OSError if a process stays in it."""
        for attempt in range(1000):  # a process may leave a moment after its end
            try:
                self.path.rmdir()
            except OSError as error:
                if error.errno != errno.EBUSY or attempt == 999:
                    raise
                time.sleep(0.001)
            else:
                if self.lock is not None:
                    os.close(self.lock)
                return


@dataclass(frozen=True, slots=True)
class MemoryGroups:
    parent: Path

    def new(self) -> MemoryGroup:
        """Make a group; raises OSError if none can be made."""
        for _ in range(TRIES):
            path = self.parent / f"{PREFIX}-{os.getpid()}-{next(NUMBERS)}"
            with contextlib.suppress(FileExistsError):  # of a process in another namespace
                path.mkdir()
                if (lock := _lock(path, fcntl.LOCK_SH)) is not None:
                    return MemoryGroup(path, lock)
                # Another process takes it for one that was left, and removes it.
        raise OSError(f"no control group can be made and locked in {self.parent}")


def memory_groups(parent: Path | None = None) -> MemoryGroups:
    """Return the groups that can be made in `parent`, or where this process is.

    Raises OSError saying why if there is no such place.
    """
    failure: OSError = FileNotFoundError("no control group of this process accounts for memory")
    for folder in [parent] if parent else _own_places():
        try:
            return _checked(MemoryGroups(folder))
        except OSError as error:
            failure = error
    raise failure


def _checked(groups: MemoryGroups) -> MemoryGroups:
    """Check that a group can be made there and limited; raises OSError otherwise."""
    enabled = groups.parent / "cgroup.subtree_control"  # of version 2
    if enabled.exists() and "memory" not in enabled.read_text().split():
        enabled.write_text("+memory")
    _sweep(groups.parent)
    group = groups.new()
    try:
        group.limit(1 << 30)
        group.kills()
    finally:
        group.remove()
    return groups


def _own_places() -> list[Path]:
    """Return this process's group that accounts for memory; of version 2, also the one above it."""
    mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        number, controllers, group = line.split(":", 2)
        for fields in mounts:
            kind, options = fields[fields.index("-") + 1], fields[-1].split(",")
            folder = Path(fields[4]) / os.path.relpath(group, fields[3])
            if kind == "cgroup" and "memory" in options and "memory" in controllers.split(","):
                return [folder]
            if kind == "cgroup2" and number == "0":
                folders = [
                    candidate
                    for candidate in (folder, folder.parent)
                    if _accounts_for_memory(candidate)
                ]
                if folders:
                    return folders
    return []


def _accounts_for_memory(folder: Path) -> bool:
    controllers = folder / "cgroup.controllers"
    return controllers.exists() and "memory" in controllers.read_text().split()


def _sweep(parent: Path) -> None:
    """Remove groups of processes that were killed before they could, and what is left in them.

    bwrap cannot end what it has just begun to make when it is killed itself at that moment. Whether
    the maker of a group lives is asked of its lock: the numbers of processes in another container
    are not in our /proc, and those inside a group of one are shown as 0.
    """
    for path in parent.glob(f"{PREFIX}-*"):
        if is_own_folder(path) and (lock := _lock(path, fcntl.LOCK_EX)) is not None:
            with contextlib.suppress(OSError):
                if _all_ended(path):
                    MemoryGroup(path).remove()
            os.close(lock)


def _all_ended(group: Path) -> bool:
    """End the processes in a group; whether all could be."""
    if (group / "cgroup.kill").exists():  # of version 2, also for those of other namespaces
        (group / "cgroup.kill").write_text("1")
        return True
    ended = [kill(pid) for pid in _processes(group)]
    return all(ended)


def _processes(group: Path) -> Iterator[int]:
    yield from map(int, (group / "cgroup.procs").read_text().split())


def _lock(group: Path, how: int) -> int | None:
    """Lock a group that is still there, until the number is closed; None: it is not to be had."""
    try:
        number = os.open(group, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(number, how | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(number), group.lstat()):
            return number
    except OSError:
        pass
    os.close(number)
    return None
