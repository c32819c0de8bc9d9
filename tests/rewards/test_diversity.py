"""The reward for attempts that differ from other right attempts at a task."""

from __future__ import annotations

import asyncio

import pytest

from rolecall.monitor.diversity import diversity_metrics
from rolecall.rewards.correct import correct
from rolecall.rewards.diversity import Diversity
from rolecall.rollout.episodes import RolloutContext
from rolecall.rollout.group_rewards import pay_groups
from tests.algorithms.test_every_algorithm import Display, trainer_of
from tests.toy import command, episode, solo_config, turn, write


def group(*said, scores=None):
    attempts = [
        episode(
            number,
            [turn("solver", task="x", episode=f"x:{number}", tokens=tokens)],
            {"team": score},
            task="x",
        )
        for number, (tokens, score) in enumerate(
            zip(said, scores or [1.0] * len(said), strict=True)
        )
    ]
    for each in attempts:
        each.scores = dict(each.rewards)
    return attempts


def paid(attempts, **options):
    return [each["solver"] for each in Diversity(**options).pay_group(attempts)]


def test_an_attempt_earns_its_mean_distance_to_the_others():
    assert paid(group([1, 2, 3], [1, 2, 4], [9])) == [0.75, 0.75, 1.0]
    assert paid(group([1, 2], [1, 2])) == [0.0, 0.0]
    assert paid(group([1, 2], [3, 4])) == [1.0, 1.0]


def test_a_wrong_answer_earns_nothing_and_makes_no_other_one_differ():
    attempts = group([1, 2], [1, 2], [7, 8], scores=[1.0, 1.0, 0.0])
    assert paid(attempts) == [0.0, 0.0, 0.0]
    assert paid(attempts, gate="none") == [0.5, 0.5, 1.0]
    assert paid(group([1], [2], scores=[1.0, 0.0])) == [0.0, 0.0]


def test_the_gate_mean_passes_scores_above_0_that_reach_the_mean():
    attempts = group([1], [2], [3], scores=[0.6, 0.5, 0.1])
    assert paid(attempts, gate="mean") == [1.0, 1.0, 0.0]
    assert paid(group([1], [2], scores=[0.0, 0.0]), gate="mean") == [0.0, 0.0]


def test_an_unknown_gate_is_refused():
    with pytest.raises(ValueError, match="gate is right, mean or none, got 'all'"):
        Diversity(gate="all")


def test_a_group_is_paid_once_by_its_weight_and_the_reward_is_shown_by_name():
    attempts = group([1, 2, 3], [1, 2, 4])
    rewards = {"correct": (correct, 1.0), "diversity": (Diversity(), 0.4)}
    context = RolloutContext({"solver": None}, None, {}, None, rewards)
    for _ in range(2):
        pay_groups(context, [attempts])
    for each in attempts:
        assert each.rewards == {"team": 1.0, "solver": pytest.approx(0.2)}
        assert each.metrics == {"reward/diversity/solver": 0.5}
        assert each.total(each.turns[0]) == pytest.approx(1.2)


def test_an_agent_and_teammates_of_its_role_have_a_diversity():
    attempts = []
    for number, tokens in enumerate(([1, 2, 3], [1, 2, 4])):
        turns = [turn(name, task="x", episode=f"x:{number}", tokens=tokens) for name in ("a", "b")]
        turns[0].text, turns[1].text = "one two", "one three"
        attempts.append(episode(number, turns, {"team": 1.0}, task="x"))
    roles = {"a": "debater", "b": "debater", "judge": "judge"}
    third = 1 - 1 / 3
    assert diversity_metrics([attempts], roles) == {
        "agent/a/diversity": 0.5,
        "agent/b/diversity": 0.5,
        "role/debater/diversity": pytest.approx(third),
    }
    assert diversity_metrics([attempts[:1]], {"a": "a", "b": "b"}) == {}


def run(folder, rewards, base):
    config = solo_config(base) | {"rewards": rewards}
    config["trainer"] = config.get("trainer", {}) | {"steps": 2}
    records = []
    display = Display()
    display.step = records.append
    trainer = trainer_of(config, folder, display)
    asyncio.run(trainer.train())
    return records


def test_a_run_pays_it_and_at_weight_0_has_the_same_gradients_as_without(model_folder, tmp_path):
    plain = run(tmp_path / "a", {"correct": 1.0}, model_folder)
    unpaid = run(
        tmp_path / "b", {"correct": 1.0, "diversity": {"weight": 0.0, "gate": "none"}}, model_folder
    )
    diverse = run(
        tmp_path / "c", {"correct": 1.0, "diversity": {"weight": 0.5, "gate": "none"}}, model_folder
    )
    assert 0.0 < diverse[0]["reward/diversity/solver"] <= 1.0
    assert diverse[0]["reward/diversity/solver"] == diverse[0]["agent/solver/diversity"]
    norms = [each["policy/a/grad_norm"] for each in plain]
    assert all(norms)
    assert norms == [each["policy/a/grad_norm"] for each in unpaid]
    reward = "agent/solver/reward"
    assert diverse[0][reward] > plain[0][reward]


def test_a_single_attempt_has_nothing_to_differ_from(model_folder, tmp_path, capsys):
    rollout = {"groups": 2, "group_size": 1}
    config = solo_config(
        model_folder, algorithm="reinforce", rewards={"correct": 1.0, "diversity": 0.5},
        rollout=rollout,
    )  # fmt: skip
    assert command("check", write(tmp_path / "c.yaml", config)) == 2
    assert "rewards.diversity: it compares the attempts at a task" in capsys.readouterr().err
