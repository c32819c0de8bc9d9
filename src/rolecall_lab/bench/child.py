"""Runs one side of a benchmark in a child process: reads run numbers, writes JSON lines.

`python -m rolecall_lab.bench.child NAME SIDE full|smoke FOLDER`. The side is set up with the first
number, so that it never computes while another side is measured.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from rolecall.runtime.memory import keep_freed_memory
from rolecall_lab.bench import Measure
from rolecall_lab.bench.all import BENCHMARKS


def set_up(name: str, side: str, *, size: str, folder: Path) -> Measure:
    """Import one side and let it make its models."""
    benchmark = BENCHMARKS[name]
    module, _, function = benchmark.side(side).partition(":")
    measure: Measure = getattr(importlib.import_module(module), function)(
        benchmark.full if size == "full" else benchmark.smoke, folder
    )
    return measure


def serve(make: Callable[[], Measure]) -> None:
    """Measure each run whose number is read, and reply with a line of JSON."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not come between the replies
    keep_freed_memory()  # for every side: the allocator is not what is compared
    measure: Measure | None = None
    for line in sys.stdin:
        if measure is None:
            measure = make()
        print(json.dumps(asdict(measure(int(line)))), file=replies, flush=True)


def main() -> None:
    name, side, size, folder = sys.argv[1:]
    serve(lambda: set_up(name, side, size=size, folder=Path(folder)))


if __name__ == "__main__":
    main()
