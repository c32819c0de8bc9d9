"""Divisions, inequalities and a range of difficulty; what was generated before is what it was."""

from __future__ import annotations

import hashlib
import re

import pytest

from rolecall.environments.math.environment import KINDS, MathEnvironment
from rolecall.environments.math.generated import Generated
from rolecall.environments.math.rows import normal_question


def problems(level, kind, number=300):
    return Generated("train", level=level, kinds=(kind,), seed=0)[:number]


def test_the_problems_of_earlier_versions_are_the_same_to_the_letter():
    tasks = [
        task for level in (1, 2, 3, 6)
        for task in Generated("train", level=level, kinds=KINDS, seed=0)[:200]
    ]  # fmt: skip
    text = repr([(task.id, task.prompt, task.answer, task.info) for task in tasks])
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "842f64ba6469ba01"


@pytest.mark.parametrize("level", [1, 2, 4])
def test_divisions_leave_no_remainder_and_each_problem_has_one(level):
    for task in problems(level, "division"):
        text = task.prompt.removeprefix("Compute ").removesuffix(".")
        assert re.fullmatch(r"[\d+*/()-]+", text)
        assert eval(text) == int(task.answer)
        assert "/" in text
        for step in task.info["steps"]:
            left, _, right = step.partition("=")
            assert eval(left) == int(right)


@pytest.mark.parametrize("level", [1, 2, 4])
def test_the_answer_of_an_inequality_is_the_last_number_that_fits(level):
    """Found by trying all numbers, independent of the steps."""
    counts = {"largest": 0, "smallest": 0}
    for task in problems(level, "inequality"):
        form = r"Find the (largest|smallest) whole number x with ([\dx+*()-]+[<>]=?\d+)\."
        sought, condition = re.fullmatch(form, task.prompt).groups()
        fitting = [x for x in range(200) if eval(condition, {"x": x})]
        assert {"largest": max, "smallest": min}[sought](fitting) == int(task.answer)
        for step in task.info["steps"]:
            left, _, right = step.partition("=")
            assert eval(left) == int(right)
        assert task.info["steps"][-1].endswith(f"={task.answer}")
        counts[sought] += 1
    assert min(counts.values()) > 100


def test_a_range_of_difficulty_has_each_level_about_as_often():
    tasks = MathEnvironment(level=(1, 4)).tasks("train")[:800]
    counts = [sum(task.info["level"] == level for task in tasks) for level in range(1, 6)]
    assert sum(counts) == 800
    assert all(150 < count < 250 for count in counts[:4])
    assert all(len(task.info["steps"]) == task.info["level"] for task in tasks)
    again = MathEnvironment(level=(1, 4)).tasks("train")[:5]
    assert again == tasks[:5]
    test = {normal_question(task.prompt) for task in MathEnvironment(level=(1, 4)).tasks("test")}
    assert not test & {normal_question(task.prompt) for task in tasks}


def test_a_range_suggests_levels_below_and_above_it():
    suggestions = MathEnvironment(level=(2, 3)).suggestions
    assert (suggestions.easier, suggestions.harder) == (
        "environment.level=1", "environment.level=4",
    )  # fmt: skip


@pytest.mark.parametrize("level", [0, 7, (3, 2), (0, 2), (1, 7)])
def test_a_level_that_is_not_there_is_refused(level):
    with pytest.raises(ValueError, match="level must be 1 to 6 operations, or the fewest and"):
        MathEnvironment(level=level)
