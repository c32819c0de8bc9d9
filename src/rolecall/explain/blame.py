"""Finds the turn that decided an episode, by replaying the episode from each of its turns.

The value of a prefix is what episodes come to that begin with its turns and are sampled anew from
there. What a turn gained is the value with it less the value without it. So gains add up to the
outcome less what the team could expect before its first turn. It is the advantage Q - V, estimated
by Monte Carlo roll-outs as in VinePPO (2410.01679), with common random numbers for all prefixes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from rolecall.agents.agent import Policy
from rolecall.core.types import Episode, Swap
from rolecall.explain.replays import (
    Estimate,
    Replay,
    Replayer,
    Returns,
    difference,
    episode_score,
    estimate,
    find_calls,
    score_replay,
)


@dataclass(frozen=True, slots=True)
class TurnGain:
    """The change that one turn made to what the team could expect."""

    turn: str
    agent: str
    text: str
    before: Estimate  # the value without it: it is sampled anew, and all that follows
    after: Estimate  # the value with it
    gain: Estimate  # after less before
    over_silence: Estimate | None  # after less the value where it says nothing
    over_base: Estimate | None  # after less the value where untrained weights say it


@dataclass(slots=True)
class Blame:
    """The gains of an episode's turns and agents, which say what decided it."""

    episode: str
    score: float
    expected: Estimate  # what the team could expect before its first turn
    turns: list[TurnGain] = field(default_factory=list)
    gains: dict[str, float] = field(default_factory=dict)  # by agent, over its turns
    num_replays: int = 0
    num_failed: int = 0
    seconds: float = 0.0
    weights: str = ""  # the checkpoint that was played
    notes: list[str] = field(default_factory=list)

    @property
    def culprit(self) -> TurnGain | None:
        """The turn that lost most of what the team could expect; the first of equal ones."""
        losses = [turn for turn in self.turns if turn.gain.is_loss]
        return min(losses, key=lambda turn: turn.gain.mean, default=None)

    @property
    def saviour(self) -> TurnGain | None:
        """The turn that gained most beyond what the team could expect; the first of equal ones."""
        gains = [turn for turn in self.turns if turn.gain.is_gain]
        return max(gains, key=lambda turn: turn.gain.mean, default=None)


async def blame_episode(
    episode: Episode,
    replay: Replay,
    *,
    draws: int = 16,
    base: Mapping[str, Policy] | None = None,
    concurrency: int = 256,
) -> Blame:
    """Replay an episode from each of its turns, `draws` times each; `concurrency` replays at once.

    `replay` is `rollout.episodes.continue_episode` with the weights that sampled it. `base` has the
    untrained policy of each agent; without it no turn is compared with what untrained weights say.
    A replay whose first turns are not those of the episode counts as failed. Raises ReplayError
    where all replays of a turn fail.
    """
    started = time.monotonic()
    ends = find_calls(episode)
    last = episode_score(episode)
    replayer = Replayer(episode, replay, concurrency=concurrency)

    async def arm(kept: int, swap: Swap | None) -> Returns:
        played = (replayer.play(kept, draw, swap) for draw in range(draws))
        return list(map(score_replay, await asyncio.gather(*played)))

    calls = [(start, end, episode.turns[end - 1]) for start, end in ends]
    arms: list[Returns] = await asyncio.gather(
        *(arm(start, None) for start, _, _ in calls),
        *(arm(start, Swap(turn.call_path, "")) for start, _, turn in calls),
        *(
            arm(start, Swap(turn.call_path, None, policy=base[turn.agent]))
            for start, _, turn in calls
            if base and turn.agent in base
        ),
    )
    number = len(calls)
    values, silent = arms[:number], arms[number : 2 * number]
    untrained = iter(arms[2 * number :])
    values.append([last] * draws)
    result = Blame(episode.id, last, estimate(values[0]))
    for call, (_, _, turn) in enumerate(calls):
        has_base = base is not None and turn.agent in base
        gain = TurnGain(
            turn=turn.id,
            agent=turn.agent,
            text=turn.visible,
            before=estimate(values[call]),
            after=estimate(values[call + 1]),
            gain=difference(values[call + 1], values[call]),
            over_silence=difference(values[call + 1], silent[call]),
            over_base=difference(values[call + 1], next(untrained)) if has_base else None,
        )
        result.turns.append(gain)
        result.gains[turn.agent] = result.gains.get(turn.agent, 0.0) + gain.gain.mean
    result.num_replays = sum(map(len, arms))
    result.num_failed = sum(value is None for one in arms for value in one)
    result.notes += replayer.notes
    result.seconds = time.monotonic() - started
    return result
