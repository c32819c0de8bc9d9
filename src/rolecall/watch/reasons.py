"""Counts why turns and episodes of a step are not as they should be, with examples to open."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rolecall.core.json_types import Record
from rolecall.watch.clean_json import list_objects, load_object
from rolecall.watch.links import SHOWN, link_episode, link_turn, link_view
from rolecall.watch.models import Number, Reason
from rolecall.watch.signs import read_left_out

TOOL_PROBLEMS = {
    "refused": "refused call",
    "timeouts": "timed-out call",
    "raised": "failed call",
    "malformed": "malformed call",
    "unknown": "unknown tool",
    "too_many": "too many calls",
}
COUNTED = {  # metric of a step -> its name, and what it says
    "rollout/dropped_groups": ("dropped", "groups were dropped, as too few attempts ended"),
    "rollout/filtered_groups": ("filtered", "groups were played and filtered out"),
    "rollout/stale_groups": ("stale", "groups were too old to be trained on"),
    "rollout/stale_turns": ("stale turn", "turns were too old to be trained on"),
    "rollout/cut_episodes": ("cut off", "episodes were cut off at the deadline of the step"),
    "rollout/lost_episodes": ("lost", "episodes failed and are not on disk"),
}


def collect_reasons(
    run: str, step: int, rows: Sequence[Record], metrics: dict[str, Number]
) -> list[Reason]:
    """Return the reasons of a step, those that are most frequent first."""
    turns = [row for row in rows if row["turn"] is not None]
    collect = _Collector(run, step)
    collect.episodes(rows)
    collect.turns("invalid", "turns have not the form that is read", turns, _is_invalid)
    collect.turns("truncated", "turns were cut by max_tokens", turns, _is_cut)
    collect.left_out(turns)
    collect.tools(turns)
    reasons = sorted(collect.reasons, key=lambda reason: -reason.count)
    return [*reasons, *_count(run, step, metrics)]


class _Collector:
    def __init__(self, run: str, step: int) -> None:
        self.run, self.step = run, step
        self.reasons: list[Reason] = []

    def episodes(self, rows: Sequence[Record]) -> None:
        firsts = {row["episode"]: row for row in rows}
        kinds: dict[str, list[Record]] = {}
        for row in firsts.values():
            if row["error"] is not None:
                kinds.setdefault(row["error"].partition(":")[0], []).append(row)
        for kind, failed in kinds.items():
            self.reasons.append(
                Reason(
                    name="error",
                    text=f"episodes failed with {kind}",
                    count=len(failed),
                    of=len(firsts),
                    links=[link_episode(self.run, self.step, r["episode"]) for r in failed[:SHOWN]],
                )
            )

    def turns(
        self, name: str, text: str, turns: Sequence[Record], test: Callable[[Record], bool]
    ) -> None:
        self.add(name, text, [row for row in turns if test(row)], len(turns))

    def left_out(self, turns: Sequence[Record]) -> None:
        reasons: dict[str, list[Record]] = {}
        for row in turns:
            for reason in read_left_out(row.get("credit")):
                reasons.setdefault(reason, []).append(row)
        for reason, rows in reasons.items():
            self.add("not trained on", f"turns are not trained on: {reason}", rows, len(turns))

    def tools(self, turns: Sequence[Record]) -> None:
        problems: dict[str, list[Record]] = {}
        calls = 0
        for row in turns:
            if '"calls"' not in (row["info"] or ""):
                continue
            for call in list_objects(load_object(row["info"]).get("calls")):
                calls += 1
                if problem := str(call.get("problem") or ""):
                    problems.setdefault(problem, []).append(row)
        for problem, rows in problems.items():
            name = TOOL_PROBLEMS.get(problem, problem)
            self.add(name, f"calls of tools: {name}", rows, calls)

    def add(self, name: str, text: str, rows: Sequence[Record], number: int) -> None:
        if rows:
            links = [
                link_turn(self.run, self.step, row["episode"], row["turn"]) for row in rows[:SHOWN]
            ]
            self.reasons.append(
                Reason(name=name, text=text, count=len(rows), of=number, links=links)
            )


def _is_invalid(row: Record) -> bool:
    return row["valid"] is False and row["finish"] != "length"


def _is_cut(row: Record) -> bool:
    return bool(row["finish"] == "length")


def _count(run: str, step: int, metrics: dict[str, Number]) -> list[Reason]:
    """Return what the step's metrics alone tell: it is not in the file of episodes."""
    total = int(metrics.get("rollout/episodes") or 0)
    return [
        Reason(
            name=name,
            text=text,
            count=int(count),
            of=total,
            links=[link_view("run", "its curve", run=run, curves=metric)],
        )
        for metric, (name, text) in COUNTED.items()
        if (count := metrics.get(metric))
    ]
