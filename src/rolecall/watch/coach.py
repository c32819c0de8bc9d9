"""Answers what coaches said in a step, and whether that goes with the outcome."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import StatisticsError, correlation

from rolecall.core.json_types import Record
from rolecall.watch.clean_json import finite, load_object
from rolecall.watch.models import CoachPage, CoachRow, Missing, Number
from rolecall.watch.runs import WatchedRun
from rolecall.watch.tables import read_rows
from rolecall.watch.talk import read_coach

COLUMNS = ("turn", "episode", "agent", "episode_rewards", "info")


def answer_coach(run: WatchedRun, step: int | None) -> CoachPage:
    """Return the coach's scores of one step, the lowest first."""
    number = run.choose_step(step)
    read = read_rows(run.episode_file(number), COLUMNS)
    rows, failures = [], []
    for record in read.records:
        if record["turn"] is None or '"coach' not in (record["info"] or ""):
            continue
        info = load_object(record["info"])
        if info.get("coach_error"):
            failures.append((record["turn"], str(info["coach_error"])))
        if passes := read_coach(info):
            later = passes[1].score if len(passes) > 1 else None
            rows.append(
                CoachRow(
                    step=number,
                    turn=record["turn"],
                    episode=record["episode"] or "",
                    agent=record["agent"] or "",
                    score=passes[0].score,
                    hindsight=later,
                    outcome=read_outcome(record),
                    reasoning=passes[-1].reasoning,
                )
            )
    metrics = run.series.refresh()
    missing = list(read.missing)
    if not rows and not failures:
        missing.append(Missing(what="coach", why=f"no turn of step {number} has a coach's score"))
    return CoachPage(
        run=run.name,
        step=number,
        steps=run.list_steps(),
        correlation=correlate(rows),
        all_steps=metrics.steps,
        by_step={n: metrics.values(n) for n in sorted(metrics.columns) if n.startswith("coach/")},
        rows=sorted(rows, key=lambda row: row.score),
        failures=failures,
        missing=missing,
    )


def read_outcome(row: Record) -> float:
    """Return the outcome of a turn's agent: its own and the team's."""
    rewards = dict(row["episode_rewards"] or ())
    total = rewards.get(row["agent"], 0.0) + rewards.get("team", 0.0)
    return finite(total) or 0.0


def correlate(rows: Sequence[CoachRow]) -> dict[str, Number]:
    """Return the correlation of final score and outcome, by agent; None where one is constant."""
    pairs: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        final = row.score if row.hindsight is None else row.hindsight
        pairs[row.agent].append((final, row.outcome or 0.0))
    correlations: dict[str, Number] = {}
    for agent, values in sorted(pairs.items()):
        try:
            correlations[agent] = finite(correlation(*zip(*values, strict=True)))
        except (StatisticsError, ValueError):
            correlations[agent] = None
    return correlations
