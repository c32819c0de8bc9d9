"""Measures how the time of a training step grows with its work, and whether its memory is flat.

Each point of an axis (a group size, a number of turns ...) lives in a process of its own. After a
step that is not counted the points take turns: a round is one step of each, so that what slows the
machine for a while slows all of them. Results are kept by processor in
`benchmarks/results/scaling`; `python docs/generate_benchmarks.py` writes the page and draws its
plots. Run by hand:

    python benchmarks/scaling.py [AXIS ...] [--quick]
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from rolecall.runs.api import train
from rolecall.runtime.memory import keep_freed_memory
from rolecall_lab.bench import Measure, Measured
from rolecall_lab.bench.child import serve
from rolecall_lab.bench.crowd import resident_bytes
from rolecall_lab.bench.machine import header
from rolecall_lab.bench.pairs import Child
from rolecall_lab.bench.results import results_file
from rolecall_lab.bench.scaling import AXES, Work, config_for, measure_seconds, shrink
from rolecall_lab.bench.slopes import fit_growth, summarize

KEPT = Path(__file__).resolve().parent / "results/scaling"
MEMORY = "memory"
ROUNDS, QUICK_ROUNDS = 5, 2
STEPS, QUICK_STEPS = 1000, 300
EVERY = 50  # steps between looks at the memory
Start = Callable[[str, int], Measure]  # name of an axis and a value -> what measures its steps


class ResidentMemory:
    """A tracker that writes down how much memory the process of a run holds.

    file: where it is written, a line of JSON for each look.
    """

    def __init__(self, folder: Path, file: str) -> None:
        self.file = Path(file)

    def log(self, step: int, record: dict[str, float]) -> None:
        if step % EVERY == 0:
            with self.file.open("a") as stream:
                stream.write(json.dumps([step, resident_bytes() / 1e6]) + "\n")

    def close(self) -> None: ...


def measure_axis(name: str, values: Sequence[int], *, rounds: int, start: Start) -> dict[str, Any]:
    """Return positions on the axis, and by round the seconds of a step and its processor time."""
    measures = [start(name, value) for value in values]
    for measure in measures:
        measure(0)
    steps = [[measure(number) for measure in measures] for number in range(1, rounds + 1)]
    return {
        "values": list(values),
        "positions": [AXES[name].position(value) for value in values],
        "seconds": [[step.value for step in row] for row in steps],
        "processor_seconds": [[step.facts["processor seconds"] for step in row] for row in steps],
    }


def measure_memory(steps: int, folder: Path, *, work: Work) -> dict[str, Any]:
    """Train as `rolecall train` does, and return the memory in MB every EVERY steps."""
    config = config_for(work, folder).model_dump(exclude_unset=True)
    file = folder / "memory.jsonl"
    config["trainer"] = {"steps": steps, "save_every": steps}
    config["trackers"] = [{"name": f"{__file__}:ResidentMemory", "file": str(file)}]
    train(config, output=folder / "run")
    looks = [json.loads(line) for line in file.read_text().splitlines()]
    return {"steps": [step for step, _ in looks], "mb": [megabytes for _, megabytes in looks]}


def run_axis(name: str, *, quick: bool, folder: Path) -> dict[str, Any]:
    """Measure an axis with a process for each point."""
    values = AXES[name].values
    with ExitStack() as stack:

        def start(name: str, value: int) -> Measure:
            arguments = [__file__, "--point", name, str(value), "--folder", str(folder)]
            errors = folder / f"{name}-{value}.stderr"
            child = Child(f"{name} {value}", arguments, errors=errors)
            return stack.enter_context(child).measure

        return measure_axis(
            name,
            values[-3:] if quick else values,
            rounds=QUICK_ROUNDS if quick else ROUNDS,
            start=start,
        )


def run_memory(*, quick: bool, folder: Path) -> dict[str, Any]:
    """Measure the memory of a run in a process of its own."""
    steps = QUICK_STEPS if quick else STEPS
    arguments = [__file__, "--point", MEMORY, str(steps), "--folder", str(folder)]
    with Child(MEMORY, arguments, errors=folder / "memory.stderr") as child:
        child.measure(0)
    return json.loads((folder / "memory.json").read_text())


def serve_point(name: str, value: int, folder: Path) -> None:
    """Measure a point in this process, as a command would."""
    keep_freed_memory()
    if name == MEMORY:
        serve(lambda: write_memory(value, folder))
    else:
        serve(lambda: measure_seconds(AXES[name].work(value), folder))


def write_memory(steps: int, folder: Path) -> Measure:
    """Return what trains once and writes the memory down."""

    def measure(number: int) -> Measured:
        started = time.perf_counter()
        memory = measure_memory(steps, folder, work=shrink(Work(samples=2, prompt=8)))
        (folder / "memory.json").write_text(json.dumps(memory))
        return Measured(time.perf_counter() - started)

    return measure


def keep(results: dict[str, Any], folder: Path) -> Path:
    """Put new results into the file of this processor; other axes stay."""
    machine = header()
    file = results_file(folder, machine["machine"]["cpu"])
    kept = json.loads(file.read_text())["results"] if file.is_file() else {}
    order = [*AXES, MEMORY]
    kept = dict(sorted((kept | results).items(), key=lambda item: order.index(item[0])))
    folder.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"header": machine, "results": kept}) + "\n")
    return file


def describe(name: str, result: dict[str, Any]) -> str:
    """Return `group  slope 0.93 (0.91 .. 0.97), last doubling 0.98, 0.2 .. 3.1 s`."""
    if name == MEMORY:
        return f"{name}  {fit_growth(result):+.2f} MB in 1,000 steps"
    slope = summarize(result["positions"], result["seconds"])
    medians = [median(seconds) for seconds in zip(*result["seconds"], strict=True)]
    return (
        f"{name}  slope {slope.slope:.2f} ({slope.min:.2f} .. {slope.max:.2f}), "
        f"last doubling {slope.last:.2f}, {medians[0]:.3g} .. {medians[-1]:.3g} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("axes", nargs="*", metavar="AXIS", help=f"{', '.join([*AXES, MEMORY])}")
    parser.add_argument("--quick", action="store_true", help="three points, two rounds; not kept")
    parser.add_argument("--point", nargs=2, help=argparse.SUPPRESS)  # of a child process
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.point:
        serve_point(options.point[0], int(options.point[1]), options.folder)
        return
    names = options.axes or [*AXES, MEMORY]
    if unknown := sorted(set(names) - {*AXES, MEMORY}):
        parser.error(f"no axis {unknown[0]!r}; there are {', '.join([*AXES, MEMORY])}")
    load = os.getloadavg()[0]  # of other processes: nothing has been measured yet
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            if name == MEMORY:
                result = run_memory(quick=options.quick, folder=Path(folder))
            else:
                result = run_axis(name, quick=options.quick, folder=Path(folder))
        print(describe(name, result), flush=True)
        if not options.quick:
            machine = header()
            about = {"commit": machine["commit"], "threads": machine["threads"], "load": load}
            keep({name: about | result}, KEPT)


if __name__ == "__main__":
    main()
