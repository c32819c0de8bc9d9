"""Runs the two sides of a benchmark in pairs, each in a child process of its own.

A side lives in its process over all pairs; a run starts when the one before it has replied, so
only one side computes at a time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType

from rolecall.runtime.progress import activity
from rolecall_lab.bench import Benchmark, Measured
from rolecall_lab.bench.records import Pair, check_same_work

WARM_UP = 0  # number of the run that is not counted


class Child:
    """A process of Python that answers numbers of runs as `child.serve` does."""

    def __init__(self, name: str, arguments: Sequence[str], *, errors: Path) -> None:
        self.name = name
        self.errors = errors
        with self.errors.open("w") as stream:
            self.process = subprocess.Popen(
                [sys.executable, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                text=True,
                env=os.environ | {"OMP_NUM_THREADS": str(threads())},
            )

    def measure(self, run: int) -> Measured:
        """Measure one run in the child process.

        Raises RuntimeError with the last line of what the child said before it died.
        """
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with suppress(BrokenPipeError):  # then there is no reply either
            os.write(self.process.stdin.fileno(), f"{run}\n".encode())
        reply = self.process.stdout.readline()
        if not reply:
            self.process.wait()
            lines = self.errors.read_text().strip().splitlines() or ["it said nothing"]
            raise RuntimeError(f"{self.name} stopped: {lines[-1]}")
        return Measured(**json.loads(reply))

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:  # it may be in the middle of a run that nobody waits for
            self.process.kill()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()
        self.process.wait()


def start_side(benchmark: Benchmark, side: str, *, smoke: bool, folder: Path) -> Child:
    """Start the process of one side of a benchmark."""
    size = "smoke" if smoke else "full"
    return Child(
        f"{benchmark.name} ({side})",
        ["-m", "rolecall_lab.bench.child", benchmark.name, side, size, str(folder)],
        errors=folder / f"{benchmark.name}-{side}.stderr",
    )


def run_pairs(
    benchmark: Benchmark, peer: str, *, number: int, smoke: bool, folder: Path
) -> list[Pair]:
    """Ours, theirs, ours, theirs ...; with the peer "none" ours alone.

    Raises RuntimeError if a side dies or if both do not do the same work.
    """
    with ExitStack() as stack:

        def child(side: str) -> Child:
            return stack.enter_context(start_side(benchmark, side, smoke=smoke, folder=folder))

        ours = child("ours")
        theirs = None if peer == "none" else child(peer)
        pairs: list[Pair] = []
        now = stack.enter_context(activity(
            f"{benchmark.name} against {peer}", total=number + 1, unit="pairs"
        ))  # fmt: skip
        for run in range(WARM_UP, number + 1):
            mine = ours.measure(run)
            other = None if theirs is None else theirs.measure(run)
            now.done += 1
            if other is not None and run == WARM_UP:
                check_same_work(mine, other)
            if run != WARM_UP:
                pairs.append((mine, other))
        return pairs


def threads() -> int:
    """Threads that each side computes with."""
    return int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1)
