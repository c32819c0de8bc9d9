"""The matrix game [[0, 2], [2, -1]], in which two agents must not both move, as episodes.

Both play 1 with probability .3, so J = .75. Each alone would be better off with 1, both with 1
get -1.
"""

from __future__ import annotations

import numpy as np

from rolecall.core.types import Episode
from rolecall_lab.proofs.tabular import Doubles, Table, make_episodes

PAYOFF = np.array([[0.0, 2.0], [2.0, -1.0]])
P = (0.7, 0.3)
FIRST, SECOND = AGENTS = ("first", "second")


def team(num_states: int = 1) -> dict[str, Table]:
    """Return the two agents before any update."""
    return {agent: Table([P] * num_states) for agent in AGENTS}


def expected_payoff(team: dict[str, Table]) -> float:
    """J, exactly."""
    first, second = (table.probabilities()[0] for table in team.values())
    return float(first @ PAYOFF @ second)


def every_episode(*, own_states: bool = False) -> list[Episode]:
    """100 episodes, each joint action as often as it is likely: 49, 21, 21 and 9 times.

    With `own_states` each is in a state of its own, so that the gradient on a table of 100 rows
    tells the episodes apart.
    """
    actions = np.repeat([[0, 0], [0, 1], [1, 0], [1, 1]], [49, 21, 21, 9], axis=0).astype(np.int32)
    states = np.arange(100, dtype=np.int32) if own_states else None
    return make_episodes(
        team(100 if own_states else 1), actions, {"team": payoffs(actions)}, states=states
    )


def payoffs(actions: np.ndarray) -> Doubles:
    """Return the payoffs of joint actions [N, 2]: [N]."""
    return PAYOFF[actions[:, 0], actions[:, 1]]
