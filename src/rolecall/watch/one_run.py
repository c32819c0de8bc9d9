"""Answers one run as a whole, and what was written of it since it was last asked for."""

from __future__ import annotations

import threading
from pathlib import Path

from rolecall.watch.advice import advise_run
from rolecall.watch.configs import read_chapters
from rolecall.watch.models import Changes, Missing, Run
from rolecall.watch.run_list import Rows
from rolecall.watch.runs import WatchedRun
from rolecall.watch.stamps import stamp
from rolecall.watch.status import judge_status


def answer_run(run: WatchedRun, rows: Rows) -> Run:
    """Return all series of a run with its team, evaluations and advice."""
    metrics = run.series.refresh()
    config = run.config
    advice, missing = advise_run(run)
    if metrics.damaged:
        why = f"{metrics.damaged} lines of it are damaged and left out"
        missing.append(Missing(what="metrics.jsonl", why=why))
    row = rows.row(run)
    return Run(
        row=row,
        team=config.team(),
        workflow=config.read_part_name("workflow"),
        config=config.text,
        steps=list(metrics.steps),
        series={name: metrics.values(name) for name in sorted(metrics.columns)},
        evaluations=list(metrics.evaluations),
        advice=advice,
        chapters=read_chapters(run.path),
        cursor=metrics.cursor,
        kinds=list_kinds(run),
        missing=[*row.missing, *missing],
    )


def answer_changes(run: WatchedRun, after: str, journal: JournalCounter) -> Changes:
    """Return the steps and evaluations behind a cursor; all of them for one of another time."""
    metrics = run.series.refresh()
    before = run.series.rows_before(after)
    steps, evaluations = before or (0, 0)
    newest = metrics.steps[-1] if metrics.steps else 0
    new = {name: metrics.values(name, steps) for name in sorted(metrics.columns)}
    return Changes(
        cursor=metrics.cursor,
        is_new=before is None,
        status=judge_status(run.path, step=newest, steps=run.config.steps),
        steps=metrics.steps[steps:],
        series={name: values for name, values in new.items() if any(v is not None for v in values)},
        evaluations=metrics.evaluations[evaluations:],
        in_flight=journal.count(run),
    )


def list_kinds(run: WatchedRun) -> list[str]:
    """Return the pages that have something to show of a run."""
    names = run.series.metrics.columns
    has_episodes = bool(run.list_steps())
    shown = {
        "prompts": has_episodes,
        "spikes": has_episodes,
        "coach": any(name.startswith("coach/") for name in names),
        "tools": any(name.startswith("rollout/tool_") for name in names),
        "roles": any("/verdict/" in name for name in names),
        "matrix": (run.path / "evaluated" / "crossplay.json").is_file(),
    }
    return [name for name, is_shown in shown.items() if is_shown]


class JournalCounter:
    """Counts the episodes in journals, reading only what was added since the last time."""

    def __init__(self) -> None:
        self._counts: dict[Path, tuple[int, int, int]] = {}  # inode, bytes and lines
        self._lock = threading.Lock()

    def count(self, run: WatchedRun) -> int:
        """Return how many episodes of steps that are not done have ended."""
        with self._lock:
            return sum(self._count(file) for file in (run.path / "journal").glob("step-*.jsonl"))

    def _count(self, file: Path) -> int:
        state = stamp(file)
        if state is None:
            return 0
        inode, offset, lines = self._counts.get(file, (0, 0, 0))
        if inode != state[0] or offset > state[2]:
            offset, lines = 0, 0
        try:
            with file.open("rb") as opened:
                opened.seek(offset)
                while chunk := opened.read(1 << 20):
                    offset, lines = offset + len(chunk), lines + chunk.count(b"\n")
        except OSError:
            return 0
        self._counts[file] = state[0], offset, lines
        return lines
