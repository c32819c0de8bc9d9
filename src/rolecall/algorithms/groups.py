"""Episodes in, group-relative advantages on their turns out.

Statistics run over *samples*: every turn is one (`count: turn`), or every agent of an episode is
one, the mean of its scores (`count: episode_agent`). All numbers are float64.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable
from typing import Literal

import numpy as np

from rolecall.core import Episode, Turn, by, spread

Count = Literal["turn", "episode_agent"]
Said = tuple[Episode, Turn]
# (the scores of a group's samples) -> a function from one score to its advantage
Norm = Callable[[list[float]], Callable[[float], float]]


def standardised(samples: list[float]) -> Callable[[float], float]:
    """s -> (s - mean) / (std + 1e-6), std with n - 1; 0 where nothing can be compared.

    The test is on equality: in float32 eight rewards of 0.9 would otherwise earn -0.0560 each.
    """
    if len(samples) < 2 or max(samples) == min(samples):
        return lambda score: 0.0
    mean, std = float(np.mean(samples)), float(np.std(samples, ddof=1))
    return lambda score: (score - mean) / (std + 1e-6)


def compare(
    episodes: list[Episode],
    *,
    keys: tuple[str, ...],
    count: Count,
    norm: Norm,
    mask_truncated: bool,
) -> None:
    """Write the advantages of all trained turns, each compared with the turns of equal `keys`.

    Where agents are compared with themselves (or only one is trained) the statistics run over
    s_t, outcome plus own reward. Where they are pooled they run over outcomes, and an agent's own
    reward is compared with that agent's other turns only, so that a penalty of one agent moves
    no other's advantages.
    """
    episode_of = {turn.id: e for e in episodes for turn in e.turns if _is_trained(turn)}
    turns = [turn for e in episodes for turn in e.turns if _is_trained(turn)]
    for turn in turns:
        turn.advantages = spread(turn, 0.0)
    turns = [turn for turn in turns if not (mask_truncated and turn.finish == "length")]
    for turn in turns:
        if not math.isfinite(episode_of[turn.id].total(turn)):
            raise ValueError(f"the score of {turn.agent} in {episode_of[turn.id].id} is not finite")
    alone = "agent" in keys or len({turn.agent for turn in turns}) <= 1
    for group in by(turns, *keys):
        said = [(episode_of[turn.id], turn) for turn in group]
        if alone:
            _against_itself(said, count=count, norm=norm)
        else:
            _pooled(said, count=count, norm=norm)


def _is_trained(turn: Turn) -> bool:
    return turn.trained and turn.chosen and turn.tokens is not None


def _against_itself(group: list[Said], *, count: Count, norm: Norm) -> None:
    scores: dict[Hashable, list[float]] = defaultdict(list)
    for episode, turn in group:
        sample = turn.id if count == "turn" else (episode.id, turn.agent)
        scores[sample].append(episode.total(turn))
    advantage = norm([float(np.mean(values)) for values in scores.values()])
    for episode, turn in group:
        turn.advantages = spread(turn, advantage(episode.total(turn)))


def _pooled(group: list[Said], *, count: Count, norm: Norm) -> None:
    outcomes: dict[Hashable, float] = {}
    own: dict[str, list[float]] = defaultdict(list)
    for episode, turn in group:
        sample = turn.id if count == "turn" else (episode.id, episode.owner(turn.agent))
        outcomes[sample] = episode.outcome(turn.agent)
        own[turn.agent].append(turn.score)
    advantage = norm(list(outcomes.values()))
    for episode, turn in group:
        scores = own[turn.agent]
        extra = 0.0 if max(scores) == min(scores) else turn.score - float(np.mean(scores))
        turn.advantages = spread(turn, advantage(episode.outcome(turn.agent)) + extra)
