"""Generates maths problems with their worked steps.

The number of problems is endless for practical purposes. A problem belongs to the test split if
the hash of its text says so, so train and test cannot share one, whatever the seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Literal

from rolecall.core.interfaces.environment import ENDLESS
from rolecall.core.seeding import derive_seed
from rolecall.core.types import Task
from rolecall.data.sources import LazyTasks

Kind = Literal["expression", "equation", "word"]
Problem = tuple[str, int, list[str]]  # text, answer, steps such as "3*4=12"

LARGEST = 60  # of any number in a problem or its steps
TEST_SHARE = 10  # one text in ten is a test problem
NAMES = ("Ann", "Ben", "Eva", "Tom")
THINGS = ("apples", "books", "coins", "pens")


class Generated(LazyTasks):
    """Problem number i of a split: the same task in every run with the same seed."""

    def __init__(
        self, split: str, *, level: int, kinds: Sequence[Kind], seed: int, size: int = ENDLESS
    ) -> None:
        self.split, self.level, self.kinds, self.seed, self.size = split, level, kinds, seed, size

    def make(self, index: int) -> Task:
        random = Random(derive_seed("generated", self.split, self.level, self.seed, index))
        kind = random.choice(list(self.kinds))
        while True:
            text, answer, steps = _MAKERS[kind](random, self.level)
            is_test = derive_seed(text) % TEST_SHARE == 0
            if is_test == (self.split == "test") and answer >= 0:
                info = {"source": kind, "steps": steps}
                return Task(f"{kind}-{self.split}-{index}", text, str(answer), info)


def _step(left: int, operator: str, right: int) -> tuple[int, str]:
    value = {"+": left + right, "-": left - right, "*": left * right, "/": left // right}[operator]
    return value, f"{left}{operator}{right}={value}"


def _expression(random: Random, level: int) -> Problem:
    """Return an expression such as `(3+4)*5-2`, with `level` operations and every value between 0
    and LARGEST.
    """
    while True:
        text, value, steps = str(first := random.randint(2, 20)), first, list[str]()
        last = "*"  # a number binds as tightly as a product
        for _ in range(level):
            operator = random.choice("+-*")
            right = random.randint(2, 9)
            if operator == "*" and last in "+-":
                text = f"({text})"
            text = f"{text}{operator}{right}"
            value, step = _step(value, operator, right)
            steps.append(step)
            last = operator
            if not 0 <= value <= LARGEST:
                break
        else:
            return f"Compute {text}.", value, steps


def _equation(random: Random, level: int) -> Problem:
    """Return an equation such as `3*x+4=19`, with `level` operations around x; the steps undo
    them."""
    inverse = {"+": "-", "-": "+", "*": "/"}
    while True:
        x = value = random.randint(2, 20)
        text, last, undone = "x", "*", list[str]()
        for _ in range(level):
            operator = random.choice("+-*")
            right = random.randint(2, 9)
            if operator == "*":
                text = f"{right}*{text if last == '*' else f'({text})'}"
            else:
                text = f"{text}{operator}{right}"
            value, _ = _step(value, operator, right)
            undone.insert(0, f"{inverse[operator]}{right}")
            last = operator
            if not 0 <= value <= LARGEST:
                break
        else:
            steps, remaining = list[str](), value
            for undo in undone:
                remaining, step = _step(remaining, undo[0], int(undo[1:]))
                steps.append(step)
            return f"Solve {text}={value} for x.", x, steps


def _word(random: Random, level: int) -> Problem:
    """Return a story with one operation in each sentence after the first.

    `Ann has 5 coins. Ann gets 7 more. Ann gives 3 away. How many coins does Ann have now?`
    """
    name, thing = random.choice(NAMES), random.choice(THINGS)
    while True:
        value = random.randint(2, 30)
        text, steps = f"{name} has {value} {thing}.", list[str]()
        for _ in range(level):
            operator = random.choice("+-*")
            right = random.randint(2, 5) if operator == "*" else random.randint(2, 9)
            value, step = _step(value, operator, right)
            steps.append(step)
            event = {"+": "gets {} more", "-": "gives {} away", "*": "then has {} times as many"}
            text += f" {name} {event[operator].format(right)}."
            if not 0 <= value <= LARGEST:
                break
        else:
            return f"{text} How many {thing} does {name} have now?", value, steps


_MAKERS = {"expression": _expression, "equation": _equation, "word": _word}
