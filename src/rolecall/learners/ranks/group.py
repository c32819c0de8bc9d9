"""Starts the processes of the ranks, sends them calls, and says which one failed and how."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from pathlib import Path
from tempfile import gettempdir
from typing import Any, Protocol

from rolecall.core.errors import RunEndingError
from rolecall.learners.ranks import torchrun, wire
from rolecall.runtime.held_folders import HeldFolder, sweep
from rolecall.runtime.logs import last_lines

BLAME_S = 1.0  # in which a rank that died is found, after another one has said that it lost it


class RankError(RunEndingError):
    """A rank has died or failed; all others have been ended."""

    def __init__(self, why: str, *, raised: bool = False) -> None:
        """Set up the error; `raised`: the rank is not lost, its method raised an error."""
        super().__init__(why)
        self.raised = raised


class Hosts(Protocol):
    """Actors of a cluster that are ranks."""

    def connect(self, *, timeout_s: float) -> tuple[list[Connection], str]:
        """Return the connections by rank, and the URL at which they find one another.

        Raises RuntimeError with the cause where one has ended or hangs.
        """
        ...

    def fetch(self, folder: Path) -> None:
        """Copy a folder that rank 0 has written to this machine, if it is another one.

        Raises RuntimeError with the cause where that machine is gone.
        """
        ...

    @property
    def machine(self) -> str:
        """Return the machine of rank 0."""
        ...

    def silent(self, *, within_s: float) -> int | None:
        """Return the first rank that does not answer in time."""
        ...

    def describe_end(self, rank: int) -> str: ...
    def host(self, rank: int) -> str: ...
    def last_lines(self, rank: int) -> list[str]: ...
    def end(self) -> None: ...


class RankGroup:
    """The ranks of one place, which hold the learners of several policies.

    A call goes to all ranks and returns when all have answered. When one fails or dies, all are
    ended: they would wait for it.
    """

    def __init__(
        self,
        size: int,
        *,
        device_of: Callable[[int], str] = lambda rank: "cpu",
        start_timeout_s: float = 300.0,
        threads: int = 1,
        hosts: Hosts | None = None,
        heartbeat_s: float = 10.0,
    ) -> None:
        """Start the processes; the first call waits until they are there.

        `device_of`: a rank's device; `threads`: of a rank; `hosts`: they are there instead, and one
        that says nothing for `heartbeat_s` has failed. Raises RankError.
        """
        self.size, self._hosts, self._heartbeat_s = size, hosts, heartbeat_s
        disk = Path(gettempdir())
        sweep(disk)
        self._scratch = HeldFolder(disk, "ranks-")
        self._lock = threading.RLock()
        self._gone = ""  # why it answers nothing any more
        self._users: set[str] = set()
        self.connections: list[Connection] = []
        self.processes: list[subprocess.Popen[bytes] | None] = []
        over = threading.Event()
        self._end = weakref.finalize(self, _end, self.processes, over, hosts)
        devices = [device_of(rank) for rank in range(size)]
        rendezvous = f"file://{Path(self._scratch.name) / 'rendezvous'}"
        if hosts is not None:
            rendezvous = self._join_hosts(hosts, timeout_s=start_timeout_s)
        elif torchrun.size() is None:
            self._start_processes(size, over)
        else:
            rendezvous = "env://"
            self._start_processes(1, over)
            devices = self._join_torchrun(devices, timeout_s=start_timeout_s)
        starts = [
            (wire.Start(rank, size, device, rendezvous, threads),)
            for rank, device in enumerate(devices)
        ]
        self._start_timeout_s = start_timeout_s
        self._waits_until: float | None = time.monotonic() + start_timeout_s  # None: all are there
        with suppress(OSError):  # one has ended at once: that is found by the first call
            wire.broadcast(self.connections, starts)

    def _start_processes(self, number: int, over: threading.Event) -> None:
        """Start the processes in a thread that lives as long as they do.

        Linux sends the signal of a parent's death when the very thread ends that started a process.
        """
        logs = [self.log(rank) for rank in range(number)]
        ready = threading.Event()
        started: list[tuple[Connection, subprocess.Popen[bytes]]] = []

        def hold() -> None:
            try:
                started.extend(_spawn(log) for log in logs)
            finally:
                ready.set()
            over.wait()

        threading.Thread(target=hold, name="ranks", daemon=True).start()
        ready.wait()
        for connection, process in started:
            self.connections.append(connection)
            self.processes.append(process)
        if len(started) < number:
            raise self._ended("the processes of the learner's ranks could not be started")

    def _join_torchrun(self, devices: list[str], *, timeout_s: float) -> list[str]:
        """Take on the ranks that wait for a trainer; the devices of all."""
        if torchrun.size() != self.size:
            raise self._ended(
                f"torchrun has started {torchrun.size()} processes and learner.ranks is "
                f"{self.size}; write the same number"
            )
        if torchrun.is_taken():
            raise self._ended(
                "the ranks that torchrun has started can be in one place only; give all policies "
                "the same learner.ranks and learner.device"
            )
        called = torchrun.accept_ranks(timeout_s=timeout_s)
        if missing := [rank for rank in range(1, self.size) if rank not in called]:
            raise self._ended(
                f"learner rank {missing[0]} of {self.size}, which torchrun starts, did not come "
                f"within {timeout_s:g} s (learner.start_timeout_s)"
            )
        places = [torchrun.local_rank()]
        for _, (connection, device) in sorted(called.items()):
            self.connections.append(connection)
            self.processes.append(None)
            places.append(device)
        on_gpu = devices[0].startswith("cuda")
        return [f"cuda:{device}" if on_gpu else devices[0] for device in places]

    def _join_hosts(self, hosts: Hosts, *, timeout_s: float) -> str:
        try:
            connections, rendezvous = hosts.connect(timeout_s=timeout_s)
        except RuntimeError as error:
            raise self._ended(f"a rank of the learner ended while it started: {error}") from error
        self.connections.extend(connections)
        self.processes.extend([None] * self.size)
        return rendezvous

    def log(self, rank: int) -> Path:
        return Path(self._scratch.name) / f"rank-{rank}.log"

    def call(
        self, method: str, *arguments: Any, each: Sequence[tuple[Any, ...]] | None = None
    ) -> list[Any]:
        """Call a method of all ranks and return their answers, in order.

        `each`: further arguments for each rank. Raises RankError, after which no rank runs any
        more.
        """
        more = each or [()] * self.size
        with self._lock:
            if self._gone:
                raise RankError(self._gone)
            if self._waits_until is not None:
                self._answers()
                self._waits_until = None
            with suppress(OSError):  # one has died: that is found while its answer is awaited
                wire.broadcast(self.connections, [(method, (*arguments, *extra)) for extra in more])
            return self._answers()

    def _answers(self) -> list[Any]:
        """Collect the answers.

        Raises RankError if a rank failed, died, or did not start in time.
        """
        until = self._waits_until
        answers: dict[int, Any] = {}
        failures: dict[int, wire.Failure | None] = {}  # None: it has died
        pending = {connection: rank for rank, connection in enumerate(self.connections)}
        while pending:
            room = None if until is None else max(0.0, until - time.monotonic())
            if self._hosts is not None and until is None:
                ready = wait(list(pending), self._heartbeat_s)
                if not ready:
                    self._listen(self._hosts)
                    continue
            else:
                ready = wait(list(pending), room)
            if not ready:
                break
            for connection in ready:
                rank = pending.pop(connection)  # type: ignore[call-overload]
                try:
                    done, answer = wire.read(connection)  # type: ignore[arg-type]
                except (EOFError, OSError, pickle.UnpicklingError):
                    done, answer = False, None
                if done:
                    answers[rank] = answer
                else:
                    failures[rank] = answer
                    until = time.monotonic() + BLAME_S  # the first to say so is often not the cause
        if failures:
            why, raised = self._blame(failures)
            raise self._ended(why, raised=raised)
        if pending:
            late = min(pending.values())
            raise self._ended(
                f"learner rank {late} of {self.size} did not start within "
                f"{self._start_timeout_s:g} s (learner.start_timeout_s){self._last_lines(late)}"
            )
        return [answers[rank] for rank in range(self.size)]

    def _listen(self, hosts: Hosts) -> None:
        """Check that all ranks are alive; raises RankError if one does not answer."""
        rank = hosts.silent(within_s=self._heartbeat_s)
        if rank is not None:
            raise self._ended(
                f"learner rank {rank} of {self.size} said nothing for {self._heartbeat_s:g} s "
                f"(cluster.heartbeat_s){self._last_lines(rank)}"
            )

    def _blame(self, failures: dict[int, wire.Failure | None]) -> tuple[str, bool]:
        """Return a line for the rank that failed first: one that died, else one that lost no other.

        Also return whether that rank still lives, and an error was raised.
        """

        def order(rank: int) -> tuple[bool, bool, int]:
            failure = failures[rank]
            return failure is not None, failure is not None and failure.of_others, rank

        rank = min(failures, key=order)
        failure = failures[rank]
        how = (
            f"ended ({self._describe_exit(rank)})" if failure is None else f"failed: {failure.text}"
        )
        why = f"learner rank {rank} of {self.size} {how}{self._last_lines(rank)}"
        return why, failure is not None and not failure.of_others

    def _describe_exit(self, rank: int) -> str:
        process = self.processes[rank]
        if self._hosts is not None:
            return self._hosts.describe_end(rank)
        if process is None:
            return "its connection was lost"
        try:
            code = process.wait(BLAME_S)
        except subprocess.TimeoutExpired:
            return "it closed its connection"
        return f"exit code {code}" if code >= 0 else signal.Signals(-code).name

    def _last_lines(self, rank: int) -> str:
        where = ""
        if self._hosts is not None:
            last, where = self._hosts.last_lines(rank), f" on {self._hosts.host(rank)}"
        elif (log := self.log(rank)).exists():
            last = last_lines(log)
        else:
            return ""
        return f"; its log{where} " + (f"ends: {' | '.join(last)}" if last else "is empty")

    def _ended(self, why: str, *, raised: bool = False) -> RankError:
        """End all ranks, and the error that says why."""
        self._gone = why
        self._end()
        for connection in self.connections:
            connection.close()
        return RankError(why, raised=raised)

    def fetch(self, folder: Path) -> None:
        """Let what rank 0 has written into a folder be there on this machine. Raises RankError."""
        if self._hosts is None:
            return
        try:
            self._hosts.fetch(folder)
        except RuntimeError as error:
            why = f"what learner rank 0 of {self.size} wrote could not be fetched: {error}"
            raise self._ended(why) from error

    @property
    def machine(self) -> str | None:
        """Return the machine of rank 0 in the cluster; None where there is none."""
        return None if self._hosts is None else self._hosts.machine

    def use(self, name: str) -> None:
        """Register a learner of this name as a user of the group."""
        assert name not in self._users, name
        self._users.add(name)

    def leave(self, name: str) -> None:
        """Unregister a closed learner; the last one closes the group."""
        with self._lock:
            self._users.discard(name)
            if not self._users:
                self.close()
            elif not self._gone:
                self.call("drop", name)

    def close(self) -> None:
        """End all ranks; returns when they have ended."""
        with self._lock:
            if not self._gone:
                self._ended("the learner was closed")
        self._scratch.cleanup()


def _spawn(log: Path) -> tuple[Connection, subprocess.Popen[bytes]]:
    ours, theirs = socket.socketpair()
    with theirs, log.open("ab") as output:
        number = str(theirs.fileno())
        process = subprocess.Popen(
            [sys.executable, "-m", "rolecall.learners.ranks.child", number, str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=(theirs.fileno(),),
            start_new_session=True,  # a Ctrl-C in the terminal is the trainer's to answer
            env=_environment(),
        )
    return Connection(ours.detach()), process


def _environment() -> dict[str, str]:
    """Variables of a rank: its last lines must be in its log when it dies."""
    ours = {"PYTHONUNBUFFERED": "1", "TOKENIZERS_PARALLELISM": "false"}
    on_this_machine = {"GLOO_SOCKET_IFNAME": "lo"} if torchrun.size() is None else {}
    return {**on_this_machine, **os.environ, **ours}


def _end(
    processes: list[subprocess.Popen[bytes] | None], over: threading.Event, hosts: Hosts | None
) -> None:
    """Kill what has not ended."""
    if hosts is not None:
        hosts.end()
    for process in processes:
        if process is not None:
            process.kill()
            process.wait()
    over.set()
