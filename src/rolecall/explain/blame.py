"""Finds the turn that decided an episode, by replaying the episode from each of its turns.

The value of a prefix is what episodes come to that begin with its turns and are sampled anew from
there. What a turn gained is the value with it less the value without it. So gains add up to the
outcome less what the team could expect before its first turn. It is the advantage Q - V, estimated
by Monte Carlo roll-outs as in VinePPO (2410.01679), with common random numbers for all prefixes.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import sqrt
from statistics import fmean, stdev
from typing import Protocol

from rolecall.agents.agent import Policy
from rolecall.core.types import Episode, Swap

# Two-sided 95 % quantiles of Student's t for n - 1 degrees of freedom.
T_QUANTILES = {2: 12.7, 3: 4.3, 4: 3.18, 5: 2.78, 6: 2.57, 8: 2.36, 12: 2.2, 16: 2.13, 32: 2.04}
LEAST = 0.25  # difference of two values from which a turn is decisive


class ReplayError(RuntimeError):
    """No replay of a turn can be used."""


class Replay(Protocol):
    """Plays an episode that begins with the first turns of another one."""

    async def __call__(
        self, episode: Episode, kept: int, *, draw: int, swap: Swap | None
    ) -> Episode: ...


Returns = list[float | None]  # by draw; None where the replay failed


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over draws with its 95 % margin."""

    mean: float
    margin: float

    @property
    def is_loss(self) -> bool:
        """True if it is below 0 beyond its margin, and large enough to matter."""
        return self.mean <= -LEAST and self.mean + self.margin < 0

    @property
    def is_gain(self) -> bool:
        """True if it is above 0 beyond its margin, and large enough to matter."""
        return self.mean >= LEAST and self.mean - self.margin > 0


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
    ends = _call_ends(episode)
    places = asyncio.Semaphore(concurrency)
    last = _score(episode)
    errors: Counter[str] = Counter()

    async def play(kept: int, draw: int, swap: Swap | None) -> float | None:
        async with places:
            again = await replay(episode, kept, draw=draw, swap=swap)
        problem = again.error or _deviation(episode, again, kept)
        if problem:
            errors[problem] += 1
        return None if problem else _score(again)

    async def arm(kept: int, swap: Swap | None) -> Returns:
        return list(await asyncio.gather(*(play(kept, draw, swap) for draw in range(draws))))

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
    result.notes += [f"{count} replays failed: {text}" for text, count in errors.most_common(3)]
    result.seconds = time.monotonic() - started
    return result


def estimate(returns: Returns) -> Estimate:
    """Return the mean of the replays that did not fail, with its margin."""
    values = [value for value in returns if value is not None]
    if not values:
        raise ReplayError("every replay of a turn failed")
    return Estimate(fmean(values), _margin(values))


def difference(after: Returns, before: Returns) -> Estimate:
    """Return the mean difference over the draws that both have; draw by draw, as seeds are."""
    pairs = [(a, b) for a, b in zip(after, before, strict=True) if a is not None and b is not None]
    return estimate([a - b for a, b in pairs])


def _margin(values: list[float]) -> float:
    if len(values) < 2:
        return 0.0
    quantile = next((t for n, t in T_QUANTILES.items() if len(values) <= n), 1.98)
    return quantile * stdev(values) / sqrt(len(values))


def _score(episode: Episode) -> float:
    """Return the score that counts; without one, the mean outcome of the agents."""
    if episode.headline is not None:
        return episode.headline
    agents = sorted({turn.agent for turn in episode.turns})
    return fmean(map(episode.outcome, agents)) if agents else 0.0


def _deviation(episode: Episode, again: Episode, kept: int) -> str:
    """Return where a replay is not the episode that it should begin with; "" where it is."""
    expected = [(turn.path, turn.text) for turn in episode.turns[:kept]]
    repeated = {(turn.path, turn.text) for turn in again.turns}
    other = next((path for path, text in expected if (path, text) not in repeated), None)
    if other is None:
        return ""
    return f"turn {'.'.join(map(str, other))} was not repeated: its world or tools answer otherwise"


def _call_ends(episode: Episode) -> list[tuple[int, int]]:
    """Return from which turn to which each call goes: candidates belong to one call."""
    ends: list[tuple[int, int]] = []
    for number, turn in enumerate(episode.turns):
        if ends and turn.call_path == episode.turns[ends[-1][0]].call_path:
            ends[-1] = ends[-1][0], number + 1
        else:
            ends.append((number, number + 1))
    return ends
