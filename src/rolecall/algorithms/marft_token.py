"""MARFT (2504.16129), token mode: advantages are chained from token to token, agent to agent.

Each agent's value head reads what its agent is told, in which the words of those before it stand.
(The paper has one critic for all.) Degenerate: gamma = lam = 1 gives A = G - V.
"""

from __future__ import annotations

from statistics import fmean

from pydantic import Field

from rolecall.algorithms.ppo import Ppo
from rolecall.algorithms.round_robin import RoundRobin
from rolecall.algorithms.whitening import whiten
from rolecall.core.credit import Amounts
from rolecall.core.types import Episode, group_by


class MarftToken(RoundRobin, Ppo):
    """PPO whose chain is the whole episode: the value after an agent's last token is the next
    agent's first one.
    """

    epochs: int = Field(1, ge=1, le=1000)

    def credit(self, episodes: list[Episode]) -> None:
        """Values [.5, .6] of one agent and [.2] of the next, outcome 1, lam .95 -> [.442, .36] and
        [.8].
        """
        credited = self.credited_turns(episodes)
        episode_of = {turn.id: episode for episode, turn in credited}
        for turns in group_by([turn for _, turn in credited], "episode"):
            episode = episode_of[turns[0].id]
            agents = sorted({turn.agent for turn in turns})
            made_of: list[Amounts] = [{"own": turn.score} for turn in turns]
            outcome = fmean(map(episode.outcome, agents))
            made_of[-1] = {**made_of[-1], "outcome": outcome}
            self.chain(turns, made_of)
        if self.whiten:
            whiten(credited, centre=True)
        self.leave_out_others([turn for _, turn in credited])
