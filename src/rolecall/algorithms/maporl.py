"""MAPoRL (2502.18439): an answer in a debate is worth what it does to the later rounds, too.

Each round's answers have scores of their own, in 0..1; the return of an answer is its score and the
mean scores of all who answered later, discounted. A round that was not played is in no mean.
Degenerate: a single round is PPO without whatever comes after a turn.
"""

from __future__ import annotations

from statistics import fmean
from typing import ClassVar, Literal

from pydantic import Field

from rolecall.algorithms.ppo import Ppo
from rolecall.algorithms.whitening import whiten
from rolecall.types import Episode, Turn

Rounds = list[dict[str, float]]  # by round: the score of each agent that answered
RIGHT = 0.5  # a score above it is a right answer


class Maporl(Ppo):
    """PPO whose tokens look no further than their turn: the return has looked ahead already."""

    in_credit: ClassVar[frozenset[str]] = Ppo.in_credit | {"gamma_round", "a0", "a1", "a2", "a3"}

    kl: float = Field(0.002, ge=0, le=1000)
    """Coefficient of the KL to the reference; above 0 the policies need one."""
    kl_in: Literal["loss", "reward"] = "reward"
    """Whether the KL is a loss, or taken from the reward of each token (as old - ref)."""
    gamma_round: float = Field(0.3, ge=0, le=1)
    """Discount from one round to the next."""
    a0: float = Field(0.0, ge=0, le=1000)
    """For an answer that became right while the others were right, less for one that became wrong
    while they were wrong."""
    a1: float = Field(0.0, ge=0, le=1000)
    """For one that became right although the others were wrong, less for one that became wrong
    although they were right."""
    a2: float = Field(0.0, ge=0, le=1000)
    """For a wrong answer after which the others became right, less for a right one after which they
    became wrong."""
    a3: float = Field(0.0, ge=0, le=1000)
    """For a right answer after which the others became right, less for a wrong one after which they
    became wrong."""

    def credit(self, episodes: list[Episode]) -> None:
        """Scores [[.5, .1], [1, 0]] by round and agent -> returns [[.5, .192308], [1, 0]]."""
        said = self.credited_turns(episodes)
        rounds = {episode.id: rounds_of(episode) for episode in episodes}
        for episode, turn in said:
            played = rounds[episode.id]
            self.chain([turn], [self.return_of(played, turn) + self.bonus(played, turn)])
        if self.whiten:
            whiten(said, centre=True)

    def return_of(self, rounds: Rounds, turn: Turn) -> float:
        """Weighted mean of its own score and of the mean scores of the rounds after it."""
        now = turn.index
        found, weights = rounds[now][turn.agent], 1.0
        for later, scores in enumerate(rounds[now + 1 :], start=1):
            found += self.gamma_round**later * fmean(scores.values())
            weights += self.gamma_round**later
        return found / weights

    def bonus(self, rounds: Rounds, turn: Turn) -> float:
        """For how it changed its own answer, and for how the others changed theirs after it."""
        agent, now = turn.agent, turn.index
        right = rounds[now][agent] > RIGHT
        found = 0.0
        before = rounds[now - 1] if now else {}
        others = _others(before, agent)
        if agent in before and others is not None and (before[agent] > RIGHT) != right:
            expected = right == (others > RIGHT)  # it followed the others
            found += (self.a0 if expected else self.a1) * (1.0 if right else -1.0)
        then = _others(rounds[now], agent)
        after = _others(rounds[now + 1], agent) if now + 1 < len(rounds) else None
        if then is not None and after is not None and (then > RIGHT) != (after > RIGHT):
            better = after > RIGHT
            found += (self.a3 if right == better else self.a2) * (1.0 if better else -1.0)
        return found


def rounds_of(episode: Episode) -> Rounds:
    """What every agent earned with its first answer, its second and so on; the outcome comes with
    the last one.
    """
    last = {turn.agent: turn.index for turn in episode.turns if turn.chosen}
    found: Rounds = [{} for _ in range(max(last.values(), default=-1) + 1)]
    for turn in episode.turns:
        if turn.chosen:
            ends = turn.index == last[turn.agent]
            found[turn.index][turn.agent] = turn.score + (
                episode.outcome(turn.agent) if ends else 0.0
            )
    return found


def _others(scores: dict[str, float], agent: str) -> float | None:
    """The mean score of the others in a round; None where nobody else answered."""
    found = [score for name, score in scores.items() if name != agent]
    return fmean(found) if found else None
