"""Compares turns within groups and writes group-relative advantages on them.

Statistics run over *samples*: every turn is one (`count: turn`), or every agent of an episode is
one, the mean of its scores (`count: episode_agent`). All numbers are float64.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable
from typing import Literal

import numpy as np

from rolecall.types import Episode, Turn, group_by, spread

Count = Literal["turn", "episode_agent"]
CreditedTurn = tuple[Episode, Turn]
Samples = dict[tuple[str, Hashable], float]  # (episode id, what else tells samples apart) -> score
# (samples of a group) -> a function from a score and its episode id to an advantage
Norm = Callable[[Samples], Callable[[float, str], float]]
OwnReward = Callable[[Episode, Turn], float]


def mean_of(values: Collection[float]) -> float:
    """The mean; of equal numbers exactly that number, so that equal scores earn exactly 0.

    In float64 the sum of three times 0.1, divided by 3, is not 0.1.
    """
    lowest = min(values)
    return lowest if lowest == max(values) else float(np.mean(list(values)))


def standardised(samples: Samples) -> Callable[[float, str], float]:
    """s -> (s - mean) / (std + 1e-6), std with n - 1; 0 for fewer than two samples or equal ones.

    The test is on equality: in float32 eight rewards of 0.9 would otherwise earn -0.0560 each.
    """
    scores = list(samples.values())
    if len(scores) < 2 or max(scores) == min(scores):
        return lambda score, episode: 0.0
    mean, std = mean_of(scores), float(np.std(scores, ddof=1))
    return lambda score, episode: (score - mean) / (std + 1e-6)


def left_out(samples: Samples) -> Callable[[float, str], float]:
    """s -> s - mean of the samples of the other episodes; [1, 0, 0] -> 1, -.5, -.5.

    0 where no other episode has a sample.
    """

    def advantage(score: float, episode: str) -> float:
        others = [value for (other, _), value in samples.items() if other != episode]
        return score - mean_of(others) if others else 0.0

    return advantage


def prompt_of(turn: Turn) -> bytes:
    """A key for `by`: turns of prompt scope are compared where their prompt tokens are the same."""
    return np.ascontiguousarray(turn.ids[0]).tobytes()


def compare(
    said: list[CreditedTurn], *, keys: tuple[str, ...], count: Count, norm: Norm, own: OwnReward
) -> None:
    """Write the advantages of turns, each compared with the turns of equal `keys`.

    Where agents are compared with themselves (or only one is trained) the statistics run over
    s_t, outcome plus own reward. Where they are pooled they run over outcomes, and an agent's own
    reward is compared with that agent's other turns only, so that a penalty of one agent moves
    no other's advantages.
    """
    episode_of = {turn.id: episode for episode, turn in said}
    turns = [turn for _, turn in said]
    alone = "agent" in keys or len({turn.agent for turn in turns}) <= 1
    for group in group_by(turns, *keys):
        members = [(episode_of[turn.id], turn) for turn in group]
        if alone:
            _against_itself(members, count=count, norm=norm, own=own)
        else:
            _pooled(members, count=count, norm=norm, own=own)


def _against_itself(group: list[CreditedTurn], *, count: Count, norm: Norm, own: OwnReward) -> None:
    score = {turn.id: episode.outcome(turn.agent) + own(episode, turn) for episode, turn in group}
    scores: dict[tuple[str, Hashable], list[float]] = defaultdict(list)
    for episode, turn in group:
        scores[episode.id, turn.id if count == "turn" else turn.agent].append(score[turn.id])
    advantage = norm({sample: mean_of(values) for sample, values in scores.items()})
    for episode, turn in group:
        turn.advantages = spread(turn, advantage(score[turn.id], episode.id))


def _pooled(group: list[CreditedTurn], *, count: Count, norm: Norm, own: OwnReward) -> None:
    outcomes: Samples = {}
    reward = {turn.id: own(episode, turn) for episode, turn in group}
    of_agent: dict[str, list[float]] = defaultdict(list)
    for episode, turn in group:
        sample = turn.id if count == "turn" else episode.owner(turn.agent)
        outcomes[episode.id, sample] = episode.outcome(turn.agent)
        of_agent[turn.agent].append(reward[turn.id])
    advantage = norm(outcomes)
    for episode, turn in group:
        extra = reward[turn.id] - mean_of(of_agent[turn.agent])
        outcome = episode.outcome(turn.agent)
        turn.advantages = spread(turn, advantage(outcome, episode.id) + extra)
