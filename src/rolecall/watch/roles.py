"""Answers what verdicts agents gave, and whether they were true."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from rolecall.core.json_types import Record
from rolecall.watch.clean_json import finite, load_object
from rolecall.watch.links import SHOWN, link_turn
from rolecall.watch.models import Link, RoleCell, Roles
from rolecall.watch.prompts import spread_steps
from rolecall.watch.runs import WatchedRun
from rolecall.watch.tables import read_rows

COLUMNS = ("turn", "episode", "agent", "score", "error", "info")
MOST_STEPS = 60  # of the curve
SAYS_RIGHT = {"approve": True, "accept": True, "correct": True, "right": True, "yes": True}
SAYS_RIGHT |= {"reject": False, "refuse": False, "incorrect": False, "wrong": False, "no": False}


def answer_roles(run: WatchedRun, step: int | None) -> Roles:
    """Return verdict by outcome in one step, and the share of true verdicts by step."""
    number = run.choose_step(step)
    cells: dict[tuple[str, str], dict[bool, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for row, verdict in read_verdicts(run, number):
        cells[row["agent"] or "", verdict][_is_right(row)].append(row)
    by_step = [
        (other, agent, share)
        for other in spread_steps(run.list_steps(), MOST_STEPS)
        for agent, share in share_true(read_verdicts(run, other)).items()
    ]
    return Roles(
        run=run.name,
        step=number,
        steps=run.list_steps(),
        cells=[
            RoleCell(
                agent=agent,
                verdict=verdict,
                right=len(rows[True]),
                wrong=len(rows[False]),
                links_right=_links(run.name, number, rows[True]),
                links_wrong=_links(run.name, number, rows[False]),
            )
            for (agent, verdict), rows in sorted(cells.items())
        ],
        by_step=by_step,
    )


def read_verdicts(run: WatchedRun, step: int) -> list[tuple[Record, str]]:
    """Return the turns of a step in which an agent gave a verdict, in scored episodes."""
    verdicts = []
    for row in read_rows(run.episode_file(step), COLUMNS).records:
        if row["turn"] is None or row["error"] is not None or finite(row["score"]) is None:
            continue
        if '"verdict"' in (row["info"] or ""):
            verdict = load_object(row["info"]).get("verdict")
            if isinstance(verdict, str) and verdict:
                verdicts.append((row, verdict))
    return verdicts


def share_true(verdicts: Sequence[tuple[Record, str]]) -> dict[str, float]:
    """Return by agent the share of verdicts that agree with the outcome of the episode.

    Words that are no judgement of an answer, such as a move in a game, do not count.
    """
    truths: dict[str, list[bool]] = defaultdict(list)
    for row, verdict in verdicts:
        if (says_right := SAYS_RIGHT.get(verdict.lower())) is not None:
            truths[row["agent"] or ""].append(says_right == _is_right(row))
    return {agent: sum(each) / len(each) for agent, each in sorted(truths.items())}


def _is_right(row: Record) -> bool:
    return bool(row["score"] >= 1.0)


def _links(run: str, step: int, rows: Sequence[Record]) -> list[Link]:
    return [link_turn(run, step, row["episode"] or "", row["turn"]) for row in rows[:SHOWN]]
