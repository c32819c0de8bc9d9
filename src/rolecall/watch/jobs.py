"""Starts processes that compute with a run's weights: replays of episodes, gradients of tokens."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import ConfigDict, Field

from rolecall.core.json_types import JsonObject
from rolecall.watch.clean_json import finite, list_objects, load_object
from rolecall.watch.models import Job, Model
from rolecall.watch.refusals import BusyError, Unanswerable, UnknownNameError
from rolecall.watch.runs import WatchedRun
from rolecall.watch.stamps import stamp

STOP_S = 5.0  # that a process has to end by itself
KEPT = 20  # jobs whose results stay
ERROR_CHARS = 2000
SAY_CHARS = 30_000  # Linux takes 128 KiB an argument, and a character has up to 4 bytes
NICE = 10
Norms = dict[tuple[str, int], float]  # by turn and token


class Order(Model):
    """Names what a client asks to be computed."""

    model_config = ConfigDict(extra="forbid")
    kind: Literal["whatif", "blame", "spikes"]
    run: str = Field(max_length=1000)
    step: int = Field(ge=0, le=10**9)
    turn: str = Field("", max_length=1000)
    episode: str = Field("", max_length=1000)
    say: str | None = Field(None, max_length=SAY_CHARS)
    draws: int = Field(16, ge=2, le=1024)
    checkpoint: str | None = Field(None, pattern=r"^(latest|best|first|step-[0-9]{1,9})$")


@dataclass(slots=True)
class _Running:
    """One process, and where it writes."""

    order: Order
    command: list[str]
    process: subprocess.Popen[bytes]
    folder: tempfile.TemporaryDirectory[str]
    stamp: object  # of the step's file when it began: a run that went back does the step again
    began: float = field(default_factory=time.time)
    ended: float | None = None
    is_cancelled: bool = False

    @property
    def is_running(self) -> bool:
        if self.ended is None and self.process.poll() is not None:
            self.ended = time.time()
        return self.ended is None


class Jobs:
    """The processes of a server, of which one runs at a time."""

    def __init__(self) -> None:
        self._jobs: dict[str, _Running] = {}
        self._number = 0
        self._lock = threading.Lock()

    def start(self, order: Order, run: WatchedRun) -> Job:
        """Start a process. Raises BusyError while another one runs."""
        with self._lock:
            if any(job.is_running for job in self._jobs.values()):
                raise BusyError("another replay is running; stop it, or wait until it ends")
            command = write_command(order, run.path)
            self._number += 1
            name = str(self._number)
            folder = tempfile.TemporaryDirectory(prefix="rolecall-watch-")
            process, state = _spawn(command, Path(folder.name)), stamp(run.episode_file(order.step))
            self._jobs[name] = _Running(order, command, process, folder, state)
            for old in list(self._jobs)[:-KEPT]:
                self._jobs.pop(old).folder.cleanup()
        return self.look(name)

    def look(self, name: str) -> Job:
        """Return how a process does. Raises UnknownNameError."""
        job = self._jobs.get(name)
        if job is None:
            raise UnknownNameError(f"there is no job {name!r}")
        is_running = job.is_running
        result = None if is_running else _read_result(job)
        is_done = result is not None and job.process.returncode == 0
        status: Literal["running", "done", "failed", "cancelled"] = "failed"
        if is_running or is_done:
            status = "running" if is_running else "done"
        elif job.is_cancelled:
            status = "cancelled"
        return Job(
            job=name,
            kind=job.order.kind,
            run=job.order.run,
            status=status,
            seconds=(job.ended or time.time()) - job.began,
            command=shlex.join(["rolecall", *job.command]),
            error=_read_error(job) if status == "failed" else "",
            result=result if is_done else None,
        )

    def cancel(self, name: str) -> Job:
        """Stop a process. Raises UnknownNameError."""
        job = self._jobs.get(name)
        if job is not None and job.is_running:
            job.is_cancelled = True
            _stop(job.process)
        return self.look(name)

    def find_measured(self, run: WatchedRun, step: int) -> tuple[str, Norms]:
        """Return the newest job that measures a step, and the norms that it has measured."""
        current = stamp(run.episode_file(step))
        for name, job in reversed(list(self._jobs.items())):
            order = job.order
            is_same = (order.kind, order.run, order.step) == ("spikes", run.name, step)
            if is_same and job.stamp == current and not job.is_cancelled:
                return name, {} if job.is_running else _read_norms(_read_result(job) or {})
        return "", {}

    def close(self) -> None:
        """Stop what runs and forget all results."""
        for job in self._jobs.values():
            if job.is_running:
                _stop(job.process)
            job.folder.cleanup()
        self._jobs.clear()


def write_command(order: Order, run: Path) -> list[str]:
    """Return the words of `rolecall` that compute what is ordered.

    Raises Unanswerable where the order lacks a turn or an episode, or no command can have it.
    """
    if any("\0" in (text or "") for text in (order.turn, order.episode, order.say)):
        raise Unanswerable("a text with the character NUL cannot be sent to a process")
    words = [order.kind, str(run), f"--step={order.step}"]
    if order.kind == "spikes":
        return [*words, "--measure"]
    words.append(f"--draws={order.draws}")
    name = order.episode if order.kind == "blame" else order.turn
    if not name:
        raise Unanswerable("name an episode" if order.kind == "blame" else "name a turn")
    if order.kind == "blame":
        return [*words, f"--episode={name}"]
    words.append(f"--turn={name}")
    words += [] if order.checkpoint is None else [f"--checkpoint={order.checkpoint}"]
    return words if order.say is None else [*words, f"--say={order.say}"]


def _read_norms(result: JsonObject) -> Norms:
    tokens = list_objects(result.get("tokens"))
    norms = {(str(one["turn"]), int(one["token"])): finite(one["measured"]) for one in tokens}
    return {key: norm for key, norm in norms.items() if norm is not None}


def _spawn(command: list[str], folder: Path) -> subprocess.Popen[bytes]:
    program = [sys.executable, "-m", "rolecall"]
    with (folder / "log.txt").open("wb") as log:
        process = subprocess.Popen(
            [*program, *command, "--json", str(folder / "result.json")],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=os.environ | limit_resources(),
            start_new_session=True,
        )
    os.setpriority(os.PRIO_PROCESS, process.pid, NICE)
    return process


def limit_resources() -> dict[str, str]:
    """Return variables that leave a training its GPUs and half of the processors."""
    threads = max(1, (os.cpu_count() or 1) // 2)
    return {"OMP_NUM_THREADS": str(threads), "CUDA_VISIBLE_DEVICES": ""}


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # and what it has started
        process.wait()


def _read_result(job: _Running) -> JsonObject | None:
    try:
        text = (Path(job.folder.name) / "result.json").read_text()
        return load_object(text) if json.loads(text) else None
    except (OSError, ValueError):
        return None


def _read_error(job: _Running) -> str:
    try:
        text = (Path(job.folder.name) / "log.txt").read_text(errors="replace")
    except OSError:
        text = ""
    lines = [line for line in text.splitlines() if line.strip()]
    ending = "\n".join(lines[-5:])[-ERROR_CHARS:]
    return ending or f"the process ended with status {job.process.returncode}"
