"""Estimates what episodes come to that begin with the first turns of a recorded one.

Replays of one draw sample a call from the same seed in every arm, so that arms are compared draw by
draw (common random numbers).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from math import sqrt
from statistics import fmean, stdev
from typing import Protocol

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


class Replayer:
    """Replays one episode, and counts why replays cannot be used."""

    def __init__(self, episode: Episode, replay: Replay, *, concurrency: int) -> None:
        """Replay an episode by `replay`, at most `concurrency` times at once."""
        self.episode, self.replay = episode, replay
        self.problems: Counter[str] = Counter()
        self._places = asyncio.Semaphore(concurrency)

    async def play(self, kept: int, draw: int, swap: Swap | None) -> Episode | None:
        """Return a replay that begins with the first `kept` turns; None if it failed."""
        async with self._places:
            again = await self.replay(self.episode, kept, draw=draw, swap=swap)
        if problem := again.error or find_deviation(self.episode, again, kept):
            self.problems[problem] += 1
            return None
        return again

    @property
    def notes(self) -> list[str]:
        """The most frequent problems, each with how often it was met."""
        frequent = self.problems.most_common(3)
        return [f"{count} replays failed: {text}" for text, count in frequent]


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


def show_estimate(value: Estimate, *, sign: bool = False) -> str:
    """Return `0.56 +- 0.12`."""
    mean = f"{value.mean:+.2f}" if sign else f"{value.mean:.2f}"
    return f"{mean} +- {value.margin:.2f}"


def describe_replays(number: int, failed: int, seconds: float, weights: str) -> str:
    """Return `96 replays, of which 2 failed in 0.6 s with checkpoint step-5`."""
    share = f", of which {failed} failed" if failed else ""
    return f"{number} replays{share} in {seconds:.1f} s with {weights}"


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


def score_replay(again: Episode | None) -> float | None:
    """Return the score of a replay; None for one that failed."""
    return None if again is None else episode_score(again)


def episode_score(episode: Episode) -> float:
    """Return the score that counts; without one, the mean outcome of the agents."""
    if episode.headline is not None:
        return episode.headline
    agents = sorted({turn.agent for turn in episode.turns})
    return fmean(map(episode.outcome, agents)) if agents else 0.0


def find_deviation(episode: Episode, again: Episode, kept: int) -> str:
    """Return where a replay is not the episode that it should begin with; "" where it is."""
    expected = [(turn.path, turn.text) for turn in episode.turns[:kept]]
    repeated = {(turn.path, turn.text) for turn in again.turns}
    other = next((path for path, text in expected if (path, text) not in repeated), None)
    if other is None:
        return ""
    return f"turn {'.'.join(map(str, other))} was not repeated: its world or tools answer otherwise"


def find_calls(episode: Episode) -> list[tuple[int, int]]:
    """Return from which turn to which each call goes: candidates belong to one call."""
    ends: list[tuple[int, int]] = []
    for number, turn in enumerate(episode.turns):
        if ends and turn.call_path == episode.turns[ends[-1][0]].call_path:
            ends[-1] = ends[-1][0], number + 1
        else:
            ends.append((number, number + 1))
    return ends
