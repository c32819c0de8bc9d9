"""Compares what an episode comes to when one of its turns says something else.

Both arms begin with the turns before it. One goes on with the turn as it was, the other one with
the change; all that follows is sampled anew, with the same seeds in both.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from rolecall.core.types import Episode, Swap
from rolecall.explain.replays import (
    Estimate,
    Replay,
    Replayer,
    difference,
    episode_score,
    estimate,
    find_calls,
    score_replay,
)

SHOWN = 3  # draws whose turns are kept to be read


@dataclass(frozen=True, slots=True)
class Spoken:
    """One turn of a replay, as a person reads it."""

    path: str
    agent: str
    text: str


@dataclass(slots=True)
class Draw:
    """Holds one draw of both arms; a score is None where the replay failed."""

    unchanged: float | None
    changed: float | None
    unchanged_turns: list[Spoken] = field(default_factory=list)  # from the changed turn on
    changed_turns: list[Spoken] = field(default_factory=list)


@dataclass(slots=True)
class WhatIf:
    """The two arms, and the difference between them."""

    episode: str
    turn: str
    agent: str
    text: str  # what it said
    change: str | None  # what it says instead; None: it is sampled anew
    score: float  # of the episode as it was played
    unchanged: Estimate
    changed: Estimate
    difference: Estimate  # changed less unchanged, draw by draw
    kept: list[str]  # turns that both arms begin with
    again: list[str]  # turns of the episode that both arms sample anew
    draws: list[Draw] = field(default_factory=list)
    num_failed: int = 0
    seconds: float = 0.0
    weights: str = ""  # the checkpoint that was played
    notes: list[str] = field(default_factory=list)


async def change_turn(
    episode: Episode,
    turn_id: str,
    change: str | None,
    replay: Replay,
    *,
    draws: int = 16,
    concurrency: int = 256,
) -> WhatIf:
    """Replay an episode `draws` times with a turn as it was, and as often with the change.

    `change` is what the turn says instead; None samples it anew. `replay` is
    `rollout.episodes.continue_episode` with some weights; at most `concurrency` of them play at
    once. Raises ReplayError where all replays of an arm fail, ValueError without such a turn.
    """
    started = time.monotonic()
    number = next((n for n, turn in enumerate(episode.turns) if turn.id == turn_id), None)
    if number is None:
        raise ValueError(f"episode {episode.id} has no turn {turn_id!r}")
    start, end = next(ends for ends in find_calls(episode) if ends[0] <= number < ends[1])
    turn = episode.turns[number]
    swap = None if change is None else Swap(turn.call_path, change)
    replayer = Replayer(episode, replay, concurrency=concurrency)
    played = await asyncio.gather(
        *(replayer.play(end, draw, None) for draw in range(draws)),
        *(replayer.play(start, draw, swap) for draw in range(draws)),
    )
    pairs = list(zip(played[:draws], played[draws:], strict=True))
    rows = [Draw(score_replay(before), score_replay(after)) for before, after in pairs]
    for row, (before, after) in zip(rows[:SHOWN], pairs, strict=False):
        row.unchanged_turns, row.changed_turns = _spoken(before, start), _spoken(after, start)
    unchanged, changed = [row.unchanged for row in rows], [row.changed for row in rows]
    return WhatIf(
        episode=episode.id,
        turn=turn_id,
        agent=turn.agent,
        text=turn.text,
        change=change,
        score=episode_score(episode),
        unchanged=estimate(unchanged),
        changed=estimate(changed),
        difference=difference(changed, unchanged),
        kept=[one.id for one in episode.turns[:start]],
        again=[one.id for one in episode.turns[end:]],
        draws=rows,
        num_failed=sum(one is None for one in played),
        seconds=time.monotonic() - started,
        notes=replayer.notes,
    )


def _spoken(episode: Episode | None, start: int) -> list[Spoken]:
    turns = [] if episode is None else episode.turns[start:]
    return [Spoken(".".join(map(str, one.path)), one.agent, one.text) for one in turns]
