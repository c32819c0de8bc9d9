"""GiGPO (2505.10978): credit of the episode, plus credit among turns that met the same state.

The paper compares trajectories of one agent: in a team each agent's trajectories are compared with
each other. What a trajectory earned is its outcome and its own rewards, one sample however many
turns it has. A state is what the world or a tool showed (`turn.state`); an agent that is shown
nothing meets no state twice and has the episode's credit alone. With `similarity` below 1 states
whose texts are alike count as one. Degenerate: a state met once adds 0; equal episodes leave the
states' part.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from difflib import SequenceMatcher
from typing import Literal

from pydantic import Field, PrivateAttr

from rolecall.algorithms.base import Algorithm
from rolecall.algorithms.groups import OF_A_TASK, compare, compare_scores
from rolecall.algorithms.policy_loss import ClippedLoss
from rolecall.core.types import Episode, Turn, group_by

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
    similarity: float = Field(1.0, gt=0, le=1)
    """Count observations as one state if their texts are at least this similar, by the ratio of
    matching characters (`difflib.SequenceMatcher`); 1 asks for equal ones."""
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
        met = group_states([turn for _, turn in credited], similarity=self.similarity)
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


def group_states(turns: list[Turn], *, similarity: float) -> list[list[Turn]]:
    """Group the turns of an agent at a task whose states are equal, or similar enough.

    A turn joins the first group whose first observation is similar, as in the code of the paper. A
    turn without a state is in no group, and one whose world names its state but shows no text only
    in that of an equal state.
    """
    equal = group_by([turn for turn in turns if turn.state], *OF_A_TASK, "agent", "state")
    if similarity == 1:
        return equal
    merged: dict[tuple[str, ...], list[list[Turn]]] = defaultdict(list)
    for group in equal:
        groups = merged[tuple(getattr(group[0], name) for name in (*OF_A_TASK, "agent"))]
        alike = (g for g in groups if _is_similar(g[0], group[0], similarity))
        if (joined := next(alike, None)) is not None:
            joined += group
        else:
            groups.append(group)
    return [group for groups in merged.values() for group in groups]


def _is_similar(one: Turn, other: Turn, least: float) -> bool:
    if not one.observation or not other.observation:
        return False
    matcher = SequenceMatcher(None, one.observation, other.observation)
    # Upper bounds first: most texts differ in length or in letters already.
    return (
        matcher.real_quick_ratio() >= least
        and matcher.quick_ratio() >= least
        and matcher.ratio() >= least
    )
