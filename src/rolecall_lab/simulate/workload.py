"""Draws what a step has to do, by a seed: groups of episodes whose turns have some lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np


@dataclass(frozen=True, slots=True)
class SimulatedTurn:
    """The lengths of one call."""

    own: int
    """Tokens of the prompt that no other row begins with."""
    shared: int
    """Tokens of the prompt before them that the group's other attempts begin with."""
    context: int
    """All tokens of the prompt."""
    tokens: int
    """Sampled tokens."""
    model: str = ""
    """The policy that says it."""
    agent: str = ""
    trained: bool = True


@dataclass(frozen=True, slots=True)
class SimulatedEpisode:
    """Turns in the order of their rounds; those of one round are asked for at once."""

    rounds: tuple[tuple[SimulatedTurn, ...], ...]

    @property
    def turns(self) -> list[SimulatedTurn]:
        return [turn for together in self.rounds for turn in together]


SimulatedGroup = Sequence[SimulatedEpisode]


@dataclass(frozen=True, slots=True)
class Workload:
    """Holds what a run's steps draw from."""

    groups: Sequence[SimulatedGroup]
    """Measured ones, or made from a distribution."""
    num_groups: int
    """Of a step (`rollout.groups`)."""
    group_size: int
    concurrency: int = 256
    """Episodes under way at once (`rollout.concurrency`)."""
    seed: int = 0

    def step(self, number: int) -> list[SimulatedGroup]:
        """Return the groups of a step; they are the same for the same seed and number.

        Attempts of one measured group stay together, since hard tasks are long for all of them.
        """
        random = np.random.default_rng([self.seed, number])
        drawn = random.integers(len(self.groups), size=self.num_groups)
        groups: list[SimulatedGroup] = []
        for index in drawn:
            group = self.groups[int(index)]
            if len(group) == self.group_size:
                groups.append(group)
            else:
                whole, rest = divmod(self.group_size, len(group))
                more = random.permutation(len(group))[:rest]
                groups.append([*(list(group) * whole), *(group[int(i)] for i in more)])
        return groups


def limit_answers(groups: Sequence[SimulatedGroup], most: dict[str, int]) -> list[SimulatedGroup]:
    """Return the groups with answers cut to `most` tokens, by agent."""

    def cut(turn: SimulatedTurn) -> SimulatedTurn:
        return replace(turn, tokens=min(turn.tokens, most.get(turn.agent, turn.tokens)))

    return [
        [
            SimulatedEpisode(tuple(tuple(map(cut, together)) for together in episode.rounds))
            for episode in group
        ]
        for group in groups
    ]


def sampled_tokens(groups: Sequence[SimulatedGroup]) -> int:
    return sum(t.tokens for group in groups for episode in group for t in episode.turns)


def trained_tokens(groups: Sequence[SimulatedGroup]) -> int:
    """Count the tokens of an update, where prompts that a group shares are computed once."""
    total = 0
    for group in groups:
        shared: dict[tuple[str, int], int] = {}
        for episode in group:
            for position, turn in enumerate(episode.turns):
                if turn.trained:
                    total += turn.own + turn.tokens
                    key = (turn.model, position)
                    shared[key] = max(shared.get(key, 0), turn.shared)
        total += sum(shared.values())
    return total
