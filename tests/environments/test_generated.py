"""Generated problems are right, endless, seeded, and never shared between train and test."""

from __future__ import annotations

import asyncio
import re
from fractions import Fraction

import pytest

from rolecall.core.types import Episode, Task
from rolecall.environments.math.environment import KINDS, MathEnvironment
from rolecall.environments.math.generated import Generated


def problems(split: str, level: int, number: int = 400, kinds=KINDS):
    return Generated(split, level=level, kinds=kinds, seed=0)[:number]


@pytest.mark.parametrize("level", [1, 2, 4])
def test_every_step_is_right_and_the_last_is_the_answer(level):
    for task in problems("train", level):
        steps = task.info["steps"]
        assert len(steps) == level
        for step in steps:
            left, operator, right, value = re.fullmatch(r"(\d+)([-+*/])(\d+)=(\d+)", step).groups()
            a, b = Fraction(left), Fraction(right)
            found = {"+": a + b, "-": a - b, "*": a * b, "/": a / b}[operator]
            assert found == int(value)
        assert steps[-1].endswith(f"={task.answer}")


@pytest.mark.parametrize("level", [1, 2, 3])
def test_answers_solve_the_problem_as_it_is_written(level):
    """Independent of the steps: Python's own arithmetic on the text."""
    for task in problems("train", level, kinds=("expression",)):
        text = task.prompt.removeprefix("Compute ").removesuffix(".")
        assert re.fullmatch(r"[\d+*()-]+", text)
        assert eval(text) == int(task.answer)
    for task in problems("train", level, kinds=("equation",)):
        left, right = task.prompt.removeprefix("Solve ").removesuffix(" for x.").split("=")
        assert re.fullmatch(r"[\dx+*()-]+", left)
        assert eval(left, {"x": int(task.answer)}) == int(right)


def test_word_problems_say_what_their_steps_do():
    [task] = [t for t in problems("train", 2, 50, ("word",)) if "times" in t.prompt][:1]
    numbers = re.findall(r"\d+", task.prompt)
    used = re.findall(r"\d+", " ".join(s.partition("=")[0] for s in task.info["steps"]))
    assert set(numbers) <= set(used)


def test_train_and_test_share_no_problem_by_construction():
    train = {t.prompt for t in problems("train", 1, 3000)}
    test = {t.prompt for t in problems("test", 1, 1000)}
    assert not train & test
    assert len(test) > 50


def test_a_problem_depends_on_seed_split_and_number_only():
    first, again = problems("train", 2, 20), problems("train", 2, 20)
    assert first == again
    other = Generated("train", level=2, kinds=KINDS, seed=1)[:20]
    assert [t.prompt for t in other] != [t.prompt for t in first]


def score(environment: MathEnvironment, task, answer: str, **notes) -> float:
    episode = Episode("e", task, 0, 0, answer=answer, **notes)

    async def run():
        return (await environment.open(task, seed=0).score(episode))["team"]

    return asyncio.run(run())


def test_the_world_scores_the_last_box():
    environment = MathEnvironment()
    task = environment.tasks("train")[0]
    assert score(environment, task, f"so \\boxed{{{task.answer}}}") == 1.0
    assert score(environment, task, f"\\boxed{{1}} no, \\boxed{{{task.answer}.0}}") == 1.0
    assert score(environment, task, f"it is {task.answer}") == 0.0
    assert score(environment, task, "\\boxed{-7}") == 0.0
    assert score(environment, task, "") == 0.0
    assert score(environment, task, f"\\boxed{{{task.answer}}}", is_truncated=True) == 0.0


def test_real_rows_are_tasks_and_their_own_answers_score_one(shared):
    environment = MathEnvironment(
        train=str(shared / "data/gsm8k_train_1000.jsonl"),
        test=[str(shared / "data/math_500.json"), str(shared / "data/aime_2025.json")],
    )
    train, test = environment.tasks("train"), environment.tasks("test")
    assert (len(train), len(test)) == (1000, 530)
    assert len({t.id for t in test}) == 530
    for task in (*train[:50], *test[:40]):
        answer = task.answer if isinstance(task.answer, str) else task.answer[0]
        assert score(environment, task, f"\\boxed{{{answer}}}") == 1.0
        assert score(environment, task, "\\boxed{-123456789}") == 0.0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"level": 9}, "level"),
        ({"train": "a.json", "test": "b.json", "level": 2}, "no effect"),
        ({"test": "b.json", "test_size": 5}, "no effect"),
        ({"train": []}, "empty"),
    ],
)
def test_options_that_mean_nothing_are_refused(options, said):
    with pytest.raises(ValueError, match=said):
        MathEnvironment(**options)


def test_steps_of_the_maths_world_reward_right_answers_and_right_verdicts():
    async def main():
        environment = MathEnvironment()
        task = Task("t", "2+2?", "4")
        world = environment.open(task, seed=0)
        right, wrong = await world.fork(), await world.fork()
        seen = [await right.step("solver", "2+2=4\n\\boxed{4}")]
        seen.append(await wrong.step("solver", "\\boxed{5}"))
        child = await right.fork()
        seen.append(await child.step("verifier", "<verify>approve</verify>"))
        seen.append(await child.step("verifier", "<verify>reject</verify>"))
        seen.append(await wrong.step("verifier", "<verify>reject</verify>"))
        seen.append(await wrong.step("solver", "no box"))
        assert [(o.team, o.reward) for o in seen] == [
            (1, 0), (0, 0), (1, 1), (1, 0), (0, 1), (0, 0)
        ]  # fmt: skip
        assert not world.solved, "forks go their own way"
        await world.become(right)
        assert world.solved
        await environment.close()

    asyncio.run(main())
