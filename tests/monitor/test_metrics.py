"""What a step's numbers leave out."""

from __future__ import annotations

from rolecall.monitor import metrics
from rolecall.rollout.episodes import Rollout
from tests.monitor.runs_for_tests import episode


def measured(*episodes):
    return metrics.rollout_metrics(Rollout(groups=[[*episodes]]))


def test_an_action_without_a_coachs_score_is_in_no_mean_reward():
    scored, lost = episode("2+2", 0, score=None), episode("2+2", 1, score=None)
    for played in (scored, lost):
        played.rewards.clear()
    scored.turns[0].rewards["coach"] = 0.7
    for turn in (*lost.turns, scored.turns[1]):
        turn.coach.error, turn.trained = "unreadable", False
    found = measured(scored, lost)
    assert found["agent/solver/reward"] == 0.7
    assert "agent/verifier/reward" not in found
    assert (found["coach/solver/errors"], found["coach/verifier/errors"]) == (1, 2)


def test_how_long_episodes_took_is_told_from_the_fastest_to_the_slowest():
    episodes = [episode("2+2", number, score=1.0) for number in range(5)]
    for seconds, made in zip((5.0, 1.0, 3.0, 2.0, 4.0), episodes, strict=True):
        made.metrics["wall_s"] = seconds
    found = metrics.wall_metrics(episodes)
    told = [found[f"time/episode_p{share}_s"] for share in (5, 25, 50, 75, 90, 100)]
    assert told == [1.0, 2.0, 3.0, 4.0, 5.0, 5.0]
    assert metrics.wall_metrics([]) == {}
