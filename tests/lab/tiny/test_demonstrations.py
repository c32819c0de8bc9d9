"""What is demonstrated: good habits alone solve the tasks, all habits together do not."""

from __future__ import annotations

from statistics import fmean

import pytest

from rolecall.config.load import find
from rolecall.setup.plan import load_plan
from rolecall_lab.tiny.command import demonstrating
from rolecall_lab.tiny.demonstrations import data_science
from rolecall_lab.tiny.demonstrations.mathchat import program
from rolecall_lab.tiny.demonstrations.registered import team_demonstrations
from rolecall_lab.tiny.demonstrations.scene import Scene
from rolecall_lab.tiny.playing import play_all
from rolecall_lab.tiny.tokenizer import fit
from tests.sandbox.places import working_sandbox

pytestmark = [pytest.mark.slow, pytest.mark.evidence]

SANDBOX = ("mathchat", "data_science", "code", "multitask")
# recipe -> what good habits alone come to at least; a linear model is not the rule behind a table
GOOD = {"math": 1.0, "math_alone": 1.0, "search": 1.0, "search_alone": 1.0, "mathchat": 1.0,
        "debate": 1.0, "code": 1.0, "data_science": 0.9, "tools": 1.0, "planner": 1.0,
        "multitask": 1.0}  # fmt: skip


def played(recipe: str, *, number: int):
    if recipe in SANDBOX:
        working_sandbox()
    context = demonstrating(load_plan(find(recipe)))
    tags = team_demonstrations(context).tags
    tokenizer = fit([], size=300 + len(tags), tags=tags)
    return play_all(context, tokenizer, context.environment.tasks("test")[:number], seed=0)


@pytest.mark.parametrize("recipe", GOOD)
def test_good_habits_alone_solve_the_tasks(recipe, monkeypatch):
    monkeypatch.setattr(Scene, "habit", lambda scene, shares: next(iter(shares)))
    episodes = played(recipe, number=12)
    assert fmean(episode.headline for episode in episodes) >= GOOD[recipe]
    assert all(turn.finish == "stop" for episode in episodes for turn in episode.turns)


@pytest.mark.parametrize("recipe", GOOD)
def test_all_habits_together_leave_much_to_be_learned(recipe):
    number = 24 if recipe in SANDBOX else 100
    assert fmean(episode.headline for episode in played(recipe, number=number)) <= 0.7


def test_every_task_of_the_recipes_has_programs_that_come_to_its_answer():
    tasks = load_plan(find("mathchat")).environment.make().tasks("train")[:300]
    for task in tasks:
        lines = program(task.info["steps"], random=None, habit="codes")
        names: dict[str, int] = {}
        exec("\n".join(lines[:-1]), names)
        assert names[lines[-1].removeprefix("print(").removesuffix(")")] == int(task.answer)


def test_a_program_of_the_data_team_is_made_of_declared_lines(monkeypatch):
    lines = set(data_science.LINES) | {"```python", "```"}
    for episode in played("data_science", number=6):
        for turn in episode.turns:
            if turn.text.startswith("```"):
                assert set(turn.text.split("\n")) <= lines


def test_drills_are_of_each_kind_of_task_of_a_mixture():
    context = demonstrating(load_plan(find("multitask")))
    drills = team_demonstrations(context).drills(context.environment.tasks("train"), 30)
    learned = [text for _, text in drills]
    assert sum(text.startswith("def ") for text in learned) == 10
    assert sum(text.startswith(("<tool_call>", "<answer>")) for text in learned) == 10
    assert sum(text[0].isdigit() and "=" in text for text in learned) == 20


def test_a_task_that_was_not_generated_is_refused(shared):
    path = shared / "data" / "gsm8k_train_1000.jsonl"
    context = demonstrating(load_plan(find("math"), [f"environment.train={path}"]))
    tokenizer = fit([], size=300, tags=())
    with pytest.raises(ValueError, match="no worked steps to demonstrate"):
        play_all(context, tokenizer, context.environment.tasks("train")[:1], seed=0)
