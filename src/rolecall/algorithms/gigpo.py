"""GiGPO (2505.10978): credit of the episode, plus credit among turns that met the same state.

The paper compares trajectories of one agent: in a team each agent's trajectories are compared with
each other. What a trajectory earned is its outcome and its own rewards, one sample however many
turns it has. A state is what the world or a tool showed (`turn.state`); an agent that is shown
nothing meets no state twice and has the episode's credit alone. Degenerate: a state met once adds
0; equal episodes leave the states' part.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from typing import Literal

from pydantic import Field, PrivateAttr

from rolecall.algorithms.base import Algorithm
from rolecall.algorithms.groups import OF_A_TASK, compare, compare_scores
from rolecall.algorithms.policy_loss import ClippedLoss
from rolecall.core.types import Episode, group_by

notices = logging.getLogger("rolecall.notices")
MOST_ALONE = 0.9  # share of such turns above which the run says so


class Gigpo(ClippedLoss, Algorithm):
    """A = GRPO's advantage of the episode + omega times that of the return among equal states."""

    omega: float = Field(1.0, ge=0, le=1000)
    """Weight of the credit among turns that met the same state."""
    gamma: float = Field(0.95, gt=0, le=1)
    """Discount from one turn of an agent to its next."""
    std: Literal["task", "none"] = "none"
    """Divide both parts by the spread of their group; `none` is the paper's setting for agents."""
    _alone: float = PrivateAttr(0.0)  # share of the turns whose state no other one met
    _told: bool = PrivateAttr(False)

    def credit(self, episodes: list[Episode]) -> None:
        """Two attempts, rewards (0, 1) in states (s0, s1) and (0, 0) in (s0, s2): .975, .5 and
        -.975, -.5.
        """
        credited = self.credited_turns(episodes)
        earned: dict[str, float] = defaultdict(float)  # by agent of an episode, then by turn
        returns: dict[str, float] = {}
        episode_of = {turn.id: episode for episode, turn in credited}
        for chain in group_by([turn for _, turn in credited], "episode", "agent"):
            episode = episode_of[chain[0].id]
            following = episode.outcome(chain[0].agent)
            for turn in reversed(chain):
                following = self.own_reward(episode, turn) + following
                returns[turn.id] = following
                following *= self.gamma
            total = sum(self.own_reward(episode, turn) for turn in chain)
            earned |= {turn.id: total for turn in chain}
        compare(
            credited, mean="agent", std="none" if self.std == "none" else "agent",
            count="episode_agent", own=lambda episode, turn: earned[turn.id], several=True,
        )  # fmt: skip
        met = group_by([t for _, t in credited if t.state], *OF_A_TASK, "agent", "state")
        for group in met:
            compare_scores(
                group,
                [{"discounted return": returns[turn.id]} for turn in group],
                names=(*OF_A_TASK, "agent", "state"),
                sample="turn",
                divide=self.std != "none",
                factor=self.omega,
            )
        alone = sum(len(group) == 1 for group in met) + sum(not turn.state for _, turn in credited)
        self._alone = alone / len(credited) if credited else 0.0

    def after_step(self, step: int) -> None:
        if self._alone > MOST_ALONE and not self._told:
            self._told = True
            notices.warning(
                "gigpo: %.0f %% of the turns met a state that no other attempt met, so that GRPO "
                "would do the same; a world says what its states are by `Observation.key`",
                100 * self._alone,
            )

    def metrics(self) -> dict[str, float]:
        return {"states_met_once": self._alone}
