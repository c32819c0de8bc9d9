"""Finds the processes of a run on Ray and ends them at random moments."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import uuid
from dataclasses import dataclass
from multiprocessing import resource_tracker
from pathlib import Path

# Inherited by all that Ray starts for this process, so that nobody else's processes are met.
NAME, MARK = "ROLECALL_TEST", uuid.uuid4().hex
os.environ[NAME] = MARK
ENGINE, RANK, WORKER, DRIVER = "engine", "rank", "worker", "driver"


def marked() -> list[Path]:
    """Folders in /proc of the processes that were started from here, by whatever way."""
    found, wanted = [], f"{NAME}={MARK}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        if int(folder.name) == resource_tracker._resource_tracker._pid:
            continue  # of this process, for as long as it lives
        try:
            if wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.append(folder)
        except OSError:  # it has ended
            continue
    return found


def actors(kind: str) -> list[int]:
    """Engines, ranks or workers, which are known by the log that they write to."""
    found = []
    for folder in marked():
        try:
            log = (folder / "fd/1").readlink()
        except OSError:
            continue
        if log.name.startswith(f"{kind}-") and log.suffix == ".log":  # Ray's own end on .out
            found.append(int(folder.name))
    return sorted(found)


def all_gone(*, within_s: float) -> list[str]:
    """What is still there then, of all that was started from here."""
    until = time.monotonic() + within_s
    while (left := marked()) and time.monotonic() < until:
        time.sleep(0.2)
    return [told(folder) for folder in left]


def told(folder: Path) -> str:
    try:
        return f"{folder.name} {(folder / 'cmdline').read_bytes()[:80]!r}"
    except OSError:
        return folder.name


@dataclass(frozen=True, slots=True)
class Kill:
    """One end: of what, by what, and when."""

    kind: str
    how: signal.Signals
    after_step: int  # that must have been recorded
    delay_s: float


def planned(seed: int, number: int, *, drivers: int) -> list[Kill]:
    """Two after each step, at any moment of what follows; `drivers` of them hit the driver.

    The run goes on meanwhile, so it should have a step for each.
    """
    chosen = random.Random(seed)
    kinds = [DRIVER] * drivers + [(ENGINE, RANK, WORKER)[n % 3] for n in range(number - drivers)]
    chosen.shuffle(kinds)
    return [
        Kill(
            kind,
            signal.SIGKILL if kind == DRIVER or chosen.random() < 0.7 else signal.SIGSTOP,
            after_step=place // 2 + 1,
            delay_s=chosen.uniform(0, 4),
        )
        for place, kind in enumerate(kinds)
    ]


class KilledRun:
    """`rolecall train` in a process of its own, which is started again when it was the victim."""

    def __init__(self, config: Path, run: Path, kills: list[Kill], *, seed: int) -> None:
        self.config, self.folder, self.kills = config, run, kills
        self.random = random.Random(seed)
        self.output = run.with_suffix(".txt")
        self.done: list[Kill] = []
        self.pids: list[int] = []  # of the drivers

    def num_steps(self) -> int:
        metrics = self.folder / "metrics.jsonl"
        return metrics.read_text().count('"kind": "step"') if metrics.exists() else 0

    def train(self, *, within_s: float) -> int:
        """The status with which the last driver ended."""
        until = time.monotonic() + within_s
        self.driver = self._started(self.config, "--output", self.folder)
        try:
            for kill in self.kills:
                if not self._wait_for(kill, until):
                    break
                if kill.kind == DRIVER:
                    self.driver.kill()
                    self.driver.wait()
                    self.driver = self._started(self.folder)
                elif not self._end_one(kill, until):
                    break
                self.done.append(kill)
            return self.driver.wait(max(1.0, until - time.monotonic()))
        finally:
            self.driver.kill()

    def _started(self, *arguments: object) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "rolecall", "train", *map(str, arguments)]
        with self.output.open("ab") as output:
            driver = subprocess.Popen(command, stdout=output, stderr=output)
        self.pids.append(driver.pid)
        return driver

    def _wait_for(self, kill: Kill, until: float) -> bool:
        """Whether the run is still there when the moment has come."""
        while self.num_steps() < kill.after_step:
            if self.driver.poll() is not None or time.monotonic() > until:
                return False
            time.sleep(0.05)
        time.sleep(kill.delay_s)
        return self.driver.poll() is None

    def _end_one(self, kill: Kill, until: float) -> bool:
        """Of those that are there now; while there is none, wait."""
        while not (there := [pid for pid in actors(kill.kind) if not is_stopped(pid)]):
            if self.driver.poll() is not None or time.monotonic() > until:
                return False
            time.sleep(0.05)
        try:
            os.kill(self.random.choice(there), kill.how)
        except ProcessLookupError:  # it had just been ended
            return self._end_one(kill, until)
        return True


def is_stopped(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "TZ"
    except OSError:
        return True


class Killer(threading.Thread):
    """Ends one process of a kind after each of some steps of a run of this process."""

    def __init__(self, run: Path, kind: str, steps: set[int], how: signal.Signals) -> None:
        super().__init__(daemon=True)
        self.run_folder, self.kind, self.steps, self.how = run, kind, set(steps), how
        self.over = threading.Event()
        self.killed: list[int] = []

    def run(self) -> None:
        while self.steps and not self.over.wait(0.02):
            metrics = self.run_folder / "metrics.jsonl"
            done = metrics.read_text().count('"kind": "step"') if metrics.exists() else 0
            there = actors(self.kind)
            if min(self.steps) <= done and there:
                self.steps.discard(min(self.steps))
                victim = there[len(self.killed) % len(there)]
                os.kill(victim, self.how)
                self.killed.append(victim)

    def __enter__(self) -> Killer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.join()


def records(run: Path) -> list[int]:
    """The steps that are recorded, in the order of the file."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [found["step"] for found in map(json.loads, lines) if found["kind"] == "step"]
