"""What a step's numbers leave out."""

from __future__ import annotations

from rolecall.monitor import metrics
from rolecall.rollout.episodes import Rollout
from tests.monitor.runs_for_tests import episode


def measured(*episodes):
    return metrics.of_rollout(Rollout(groups=[[*episodes]]))


def test_an_action_without_a_coachs_score_is_in_no_mean_reward():
    scored, lost = episode("2+2", 0, score=None), episode("2+2", 1, score=None)
    for played in (scored, lost):
        played.rewards.clear()
    scored.turns[0].rewards["coach"] = 0.7
    for turn in (*lost.turns, scored.turns[1]):
        turn.coach_error, turn.trained = "unreadable", False
    found = measured(scored, lost)
    assert found["agent/solver/reward"] == 0.7
    assert "agent/verifier/reward" not in found
    assert (found["coach/solver/errors"], found["coach/verifier/errors"]) == (1, 2)
