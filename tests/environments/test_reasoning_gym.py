"""Tasks of reasoning-gym are made, told apart by split, and scored by their own rules."""

from __future__ import annotations

import asyncio

import pytest

from rolecall.core.types import Episode
from rolecall.environments.reasoning_gym import ReasoningGymEnvironment
from tests.toy import command

LEGS = {"leg_counting": {"max_animals": 3}, "simple_equations": None}


def score(environment, task, answer: str) -> float:
    world = environment.open(task, seed=0)
    episode = Episode("e", task, 0, 0)
    episode.answer = answer
    return asyncio.run(world.score(episode))["team"]


def test_data_sets_take_turns_and_splits_share_nothing():
    environment = ReasoningGymEnvironment(LEGS, test_size=20)
    train, test = environment.tasks("train"), environment.tasks("test")
    assert [task.source for task in train[:4]] == ["leg_counting", "simple_equations"] * 2
    assert (len(train), len(test)) == (10_000, 20)
    assert train[7] == ReasoningGymEnvironment(LEGS).tasks("train")[7]
    prompts = {task.prompt for task in train[:200]}
    assert len(prompts) > 190
    assert not prompts & {task.prompt for task in test}


def test_an_answer_stands_in_a_tag_or_a_box():
    environment = ReasoningGymEnvironment("leg_counting")
    task = environment.tasks("test")[3]
    assert score(environment, task, f"So <answer>{task.answer}</answer>") == 1.0
    assert score(environment, task, f"So \\boxed{{{task.answer}}}") == 1.0
    assert score(environment, task, "I do not know.") == 0.0
    assert score(environment, task, "<answer>-1</answer>") < 0.1


@pytest.mark.parametrize(
    ("datasets", "problem"),
    [
        ({}, "datasets is empty"),
        ("leg_count", "has no 'leg_count'; nearest: leg_counting"),
        ({"leg_counting": {"legs": 4}}, "datasets.leg_counting: .*legs"),
        ({"leg_counting": {"min_animals": 9, "max_animals": 3}}, "datasets.leg_counting: "),
    ],
)
def test_what_cannot_be_made_is_an_error_that_names_the_data_set(datasets, problem):
    with pytest.raises(ValueError, match=problem):
        ReasoningGymEnvironment(datasets).tasks("train")


@pytest.mark.slow
def test_a_team_is_trained_on_it(tmp_path):
    changes = [
        "environment={name: reasoning_gym, datasets: leg_counting, test_size: 4}",
        "trainer.steps=1", "rollout.groups=2", "rollout.group_size=2", "evaluation.tasks=2",
        f"rewards={{{__file__}:alternate: 1.0}}",
    ]  # fmt: skip
    assert command("train", "math", *changes, "--output", tmp_path / "run") == 0


async def alternate(episode, world):
    return {"team": float(episode.attempt % 2)}
