"""Answers how tools were used in a step, and how turns that called them fared."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

from rolecall.core.json_types import Record
from rolecall.watch.clean_json import finite, list_objects, load_object
from rolecall.watch.links import SHOWN, link_turn
from rolecall.watch.models import Missing, Number, ToolRow, ToolsPage
from rolecall.watch.runs import WatchedRun
from rolecall.watch.tables import read_rows

COLUMNS = ("turn", "episode", "agent", "advantage", "info")


@dataclass(slots=True)
class Use:
    """Counts what one agent did with one tool."""

    calls: int = 0
    problems: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    seconds: list[float] = field(default_factory=list)
    turns: dict[str, Record] = field(default_factory=dict)  # that called it
    failing: list[Record] = field(default_factory=list)


def answer_tools(run: WatchedRun, step: int | None) -> ToolsPage:
    """Return a row for each agent and tool, those with the most problems first."""
    number = run.choose_step(step)
    read = read_rows(run.episode_file(number), COLUMNS)
    turns = [row for row in read.records if row["turn"] is not None]
    uses = collect_uses(turns)
    rows = [_row(run.name, number, key, use, turns) for key, use in uses.items()]
    metrics = run.series.refresh()
    missing = list(read.missing)
    if not rows:
        missing.append(Missing(what="tools", why=f"no turn of step {number} called a tool"))
    return ToolsPage(
        run=run.name,
        step=number,
        steps=run.list_steps(),
        rows=sorted(rows, key=lambda row: (-row.errors - row.timed_out - row.refused, -row.calls)),
        all_steps=metrics.steps,
        by_step={
            name: metrics.values(name)
            for name in sorted(metrics.columns)
            if name.startswith(("rollout/tool_", "rollout/sandbox"))
        },
        missing=missing,
    )


def collect_uses(turns: Sequence[Record]) -> dict[tuple[str, str], Use]:
    """Return what was called, by agent and tool."""
    uses: dict[tuple[str, str], Use] = defaultdict(Use)
    for row in turns:
        if '"calls"' not in (row["info"] or ""):
            continue
        for call in list_objects(load_object(row["info"]).get("calls")):
            use = uses[row["agent"] or "", str(call.get("name", ""))]
            use.calls += 1
            use.turns[row["turn"]] = row
            if (seconds := finite(call.get("seconds"))) is not None:
                use.seconds.append(seconds)
            if problem := str(call.get("problem") or ""):
                use.problems[problem] += 1
                use.failing.append(row)
    return uses


def _row(run: str, step: int, key: tuple[str, str], use: Use, turns: Sequence[Record]) -> ToolRow:
    agent, tool = key
    without = [r for r in turns if (r["agent"] or "") == agent and r["turn"] not in use.turns]
    refused, timed_out = use.problems.get("refused", 0), use.problems.get("timeouts", 0)
    examples = [*use.failing, *use.turns.values()][:SHOWN]
    return ToolRow(
        agent=agent,
        tool=tool,
        calls=use.calls,
        errors=sum(use.problems.values()) - refused - timed_out,
        timed_out=timed_out,
        refused=refused,
        seconds=fmean(use.seconds) if use.seconds else None,
        advantage_with=_mean_advantage([*use.turns.values()]),
        advantage_without=_mean_advantage(without),
        examples=[link_turn(run, step, r["episode"] or "", r["turn"]) for r in examples],
    )


def _mean_advantage(rows: Sequence[Record]) -> Number:
    values = [v for row in rows if (v := finite(row["advantage"])) is not None]
    return fmean(values) if values else None
