"""Says of the attempts at one task whether there is something to learn from them, and why."""

from __future__ import annotations

import json
from collections.abc import Sequence
from statistics import fmean

from rolecall.core.json_types import Record
from rolecall.monitor.credit_sentences import fmt, fmt_signed
from rolecall.watch.clean_json import load_clean
from rolecall.watch.models import Sign

STALE = "versions"  # ends the reason of turns that are too old to be trained on
Groups = dict[tuple[str, str], list[Record]]  # (source, task) -> rows


def group_rows(rows: Sequence[Record]) -> Groups:
    """Return the rows of a step by source and task, in the order of the file."""
    groups: Groups = {}
    for row in rows:
        groups.setdefault((row["source"] or "", row["task"] or ""), []).append(row)
    return groups


def by_episode(rows: Sequence[Record]) -> dict[str, list[Record]]:
    """Return the rows of a task by episode, rising by the number of the attempt."""
    episodes: dict[str, list[Record]] = {}
    for row in sorted(rows, key=lambda row: row["attempt"] or 0):
        episodes.setdefault(row["episode"] or "", []).append(row)
    return episodes


def judge_group(rows: Sequence[Record]) -> tuple[Sign, str]:
    """Return the sign of a group and a sentence that says why."""
    episodes = by_episode(rows)
    firsts = [turns[0] for turns in episodes.values()]
    if all(first["error"] is not None for first in firsts):
        return "failed", f"no attempt could be scored: {firsts[0]['error']}"
    trained = [row for row in rows if row["turn"] is not None and row["trained"]]
    advantages = [row["advantage"] for row in trained if row["advantage"] is not None]
    if any(advantages):
        agents = sorted({row["agent"] or "" for row in trained if row["advantage"]})
        return "signal", (
            f"turns of {', '.join(agents)} have advantages from {fmt_signed(min(advantages))} to "
            f"{fmt_signed(max(advantages))}"
        )
    reasons = {reason for row in trained for reason in read_left_out(row.get("credit"))}
    if reasons and not advantages:
        is_stale = all(reason.endswith(STALE) for reason in reasons)
        return ("stale" if is_stale else "filtered"), "; ".join(sorted(reasons))
    return "no signal", _say_alike(firsts, trained)


def read_left_out(credit: str | None) -> list[str]:
    """Return the reasons for which a turn is not trained on, of its credit as it is recorded."""
    if not credit or '"LeftOut"' not in credit:
        return []
    try:
        terms = load_clean(credit)
    except json.JSONDecodeError:
        return []
    return [
        str(term.get("reason", ""))
        for term in terms
        if isinstance(term, dict) and term.get("kind") == "LeftOut" and term.get("is_dropped", True)
    ]


def _say_alike(firsts: Sequence[Record], trained: Sequence[Record]) -> str:
    scores = [row["score"] for row in firsts if row["error"] is None and row["score"] is not None]
    number = len(firsts)
    if not trained:
        return "no turn of it is trained on"
    if number == 1:
        return "there is one attempt, and nothing to compare it with"
    if scores and len(set(scores)) == 1:
        return f"all {len(scores)} attempts score {fmt(scores[0])}, so none is better than another"
    if scores:
        return f"attempts score {fmt(fmean(scores))} on average, and every advantage is 0"
    return "the attempts have no score"
