"""Answers what happened in one step of a run: groups by signal, gradient norms, reasons."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from rolecall.core.json_types import Record
from rolecall.watch.advice import advise_step
from rolecall.watch.clean_json import finite, shorten
from rolecall.watch.models import GroupRow, Number, Step
from rolecall.watch.norms import read_norms
from rolecall.watch.reasons import collect_reasons
from rolecall.watch.runs import WatchedRun
from rolecall.watch.signs import by_episode, group_rows, judge_group
from rolecall.watch.tables import read_rows

COLUMNS = (
    "task", "source", "family", "question", "episode", "attempt", "score", "error", "turn",
    "agent", "finish", "valid", "trained", "chosen", "advantage", "info", "credit",
)  # fmt: skip
ORDER: dict[Literal["signal", "no signal", "failed", "filtered", "stale"], int] = {
    "signal": 0, "no signal": 1, "stale": 2, "filtered": 3, "failed": 4,
}  # fmt: skip


def answer_step(run: WatchedRun, step: int | None) -> Step:
    """Return one step, the newest with episodes for None."""
    number = run.choose_step(step)
    rows = read_rows(run.episode_file(number), COLUMNS)
    groups = [_row(key, turns) for key, turns in group_rows(rows.records).items()]
    metrics = run.series.refresh().at_step(number)
    norms, missing = read_norms(run, number, metrics)
    advice, without_advice = advise_step(run, number)
    return Step(
        run=run.name,
        step=number,
        steps=run.list_steps(),
        metrics=metrics,
        groups=sorted(groups, key=lambda group: (ORDER[group.sign], group.source, group.task)),
        norms=norms,
        reasons=collect_reasons(run.name, number, rows.records, metrics),
        advice=advice,
        missing=[*rows.missing, *missing, *without_advice],
    )


def _row(key: tuple[str, str], turns: Sequence[Record]) -> GroupRow:
    episodes = by_episode(turns)
    firsts = [rows[0] for rows in episodes.values()]
    spans: dict[str, list[float]] = {}
    for row in turns:
        advantage = finite(row["advantage"])
        if row["turn"] is not None and advantage is not None:
            spans.setdefault(row["agent"] or "", []).append(advantage)
    scores: list[Number] = [finite(row["score"]) for row in firsts]
    return GroupRow(
        source=key[0],
        task=key[1],
        family=firsts[0]["family"] or "",
        question=shorten(firsts[0]["question"] or ""),
        sign=judge_group(turns)[0],
        attempts=len(episodes),
        scores=scores,
        advantages={agent: (min(span), max(span)) for agent, span in sorted(spans.items())},
    )
