"""MAPoRL (2502.18439): an answer in a debate is worth what it does to the later rounds, too.

Each round's answers have scores of their own, in 0..1; the return of an answer is its score and the
mean scores of all who answered later, discounted. A round that was not played is in no mean.
Degenerate: a single round is PPO without whatever comes after a turn.
"""

from __future__ import annotations

from statistics import fmean
from typing import Literal

from pydantic import Field

from rolecall.algorithms.ppo import Ppo
from rolecall.algorithms.whitening import whiten
from rolecall.core.credit import Amounts
from rolecall.core.types import Episode, Turn, group_by
from rolecall.runtime.turn_order import rounds

Scores = list[dict[str, float]]  # by round: of each agent that answered
RIGHT = 0.5  # a score above it is a right answer


class Maporl(Ppo):
    """PPO whose tokens look no further than their turn: the return has looked ahead already."""

    kl: float = Field(0.002, ge=0, le=1000)
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
        """Scores [[.5, .1], [1, 0]] by round and agent -> returns [[.5, .192308], [1, 0]].

        An answer is worth its return at its last turn. Turns before it, which called tools or had
        to be repeated, look ahead to it and earn what they were paid themselves.
        """
        trained = self.credited_turns(episodes)
        credited = {turn.id for _, turn in trained}
        for episode in episodes:
            played = rounds(episode)
            scores = score_rounds(episode, played)
            for now, turns in enumerate(played):
                for answer in group_by(turns, "agent"):
                    chain = [turn for turn in answer if turn.id in credited]
                    if chain:
                        agent, last = chain[0].agent, answer[-1].id
                        made_of: list[Amounts] = [
                            {"own": 0.0 if turn.id == last else turn.score} for turn in chain
                        ]
                        made_of[-1] = {
                            **made_of[-1],
                            "return of the answer": self.agent_return(scores, agent, now),
                            "bonus": self.bonus(scores, agent, now),
                        }
                        self.chain(chain, made_of)
        if self.whiten:
            whiten(trained, centre=True)

    def agent_return(self, scores: Scores, agent: str, now: int) -> float:
        """Return the weighted mean of its own score and of the mean scores of the rounds after."""
        total, weights = scores[now][agent], 1.0
        for later, answered in enumerate(scores[now + 1 :], start=1):
            total += self.gamma_round**later * fmean(answered.values())
            weights += self.gamma_round**later
        return total / weights

    def bonus(self, scores: Scores, agent: str, now: int) -> float:
        """Return the pay for changing its own answer, and for how others then changed theirs."""
        right = scores[now][agent] > RIGHT
        total = 0.0
        before = scores[now - 1] if now else {}
        others = _others(before, agent)
        if agent in before and others is not None and (before[agent] > RIGHT) != right:
            expected = right == (others > RIGHT)  # it followed the others
            total += (self.a0 if expected else self.a1) * (1.0 if right else -1.0)
        then = _others(scores[now], agent)
        after = _others(scores[now + 1], agent) if now + 1 < len(scores) else None
        if then is not None and after is not None and (then > RIGHT) != (after > RIGHT):
            better = after > RIGHT
            total += (self.a3 if right == better else self.a2) * (1.0 if better else -1.0)
        return total


def score_rounds(episode: Episode, played: list[list[Turn]]) -> Scores:
    """Return what each agent's answer in each of these rounds scored.

    An answer's score is what its last turn earned; the outcome comes with the agent's last one.
    """
    last = {turn.agent: turn.id for turns in played for turn in turns}
    scores: Scores = []
    for turns in played:
        answers = {turn.agent: turn for turn in turns}  # the last turn of each
        scores.append(
            {
                agent: turn.score + (episode.outcome(agent) if turn.id == last[agent] else 0.0)
                for agent, turn in answers.items()
            }
        )
    return scores


def _others(scores: dict[str, float], agent: str) -> float | None:
    """Return the mean score of the others in a round; None if nobody else answered."""
    others = [score for name, score in scores.items() if name != agent]
    return fmean(others) if others else None
