"""Answers the list of all runs, with a line of scores and the sweep of each."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from rolecall.watch.models import Missing, RunList, RunRow, Sweep
from rolecall.watch.runs import Runs, WatchedRun
from rolecall.watch.sketch import Sketch, sketch_metrics
from rolecall.watch.stamps import stamp
from rolecall.watch.status import judge_status
from rolecall.watch.sweeps import find_sweeps

LOG_BYTES = 16_384  # at the end of a log, in which the newest error is looked for


@dataclass(slots=True)
class Rows:
    """Makes rows of runs, and keeps them until a file of the run changes."""

    sketches: dict[Path, tuple[object, Sketch]] = field(default_factory=dict)
    errors: dict[Path, tuple[object, str]] = field(default_factory=dict)

    def row(self, run: WatchedRun) -> RunRow:
        """Return the row of a run, outside of any sweep."""
        config, sketch = run.config, self._sketch(run.path / "metrics.jsonl")
        missing = list(config.missing)
        metrics = run.path / "metrics.jsonl"
        if not metrics.is_file():
            missing.append(Missing(what="metrics.jsonl", why="no step is done yet"))
        return RunRow(
            run=run.name,
            status=judge_status(run.path, step=sketch.step, steps=config.steps),
            algorithm=config.read_part_name("algorithm"),
            environment=config.read_part_name("environment"),
            agents=[agent.agent for agent in config.team()],
            step=sketch.step,
            steps=config.steps,
            score=sketch.score,
            scores=sketch.scores,
            held_out=sketch.held_out,
            updated=_updated(run.path),
            error=self._error(run.path / "log.txt"),
            sweep="",
            differs={},
            missing=missing,
        )

    def _sketch(self, file: Path) -> Sketch:
        state = stamp(file)
        kept = self.sketches.get(file)
        if kept is None or kept[0] != state:
            kept = self.sketches[file] = state, sketch_metrics(file)
        return kept[1]

    def _error(self, file: Path) -> str:
        state = stamp(file)
        kept = self.errors.get(file)
        if kept is None or kept[0] != state:
            kept = self.errors[file] = state, read_newest_error(file)
        return kept[1]


def answer_runs(runs: Runs, rows: Rows) -> RunList:
    """Return all runs, and the sweeps that they are of."""
    watched = runs.list_all()
    listed = [rows.row(run) for run in watched]
    sweeps = find_sweeps({run.name: run.config.keys for run in watched})
    by_run = {name: sweep for sweep in sweeps for name in sweep.members}
    for row in listed:
        if (sweep := by_run.get(row.run)) is not None:
            row.sweep, row.differs = sweep.name, sweep.members[row.run]
    shown = [Sweep(name=one.name, keys=one.keys, runs=[*one.members]) for one in sweeps]
    return RunList(runs=listed, sweeps=shown, total=len(listed))


def read_newest_error(log: Path) -> str:
    """Return the newest line of a log that is an error; "" for none."""
    try:
        with log.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - LOG_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    for line in reversed(lines):
        words = line.split(" ", 3)
        if len(words) == 4 and words[2] in ("ERROR", "CRITICAL"):
            return words[3][:300]
    return ""


def _updated(folder: Path) -> float:
    """Return when something of a run was last written."""
    names = ("metrics.jsonl", "log.txt", "config.yaml", "journal", "episodes")
    stamps = [stamp(folder / name) for name in names]
    return max((state[1] / 1e9 for state in stamps if state is not None), default=0.0)
