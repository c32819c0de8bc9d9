"""Generates maths problems with their worked steps.

The number of problems is endless for practical purposes. A problem belongs to the test split if
the hash of its text says so, so train and test cannot share one, whatever the seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Literal

from rolecall.core.interfaces.environment import ENDLESS
from rolecall.core.json_types import JsonObject
from rolecall.core.seeding import derive_seed
from rolecall.core.types import Task
from rolecall.data.sources import LazyTasks

Kind = Literal["expression", "equation", "word", "division", "inequality"]
Level = int | tuple[int, int]  # operations, or the fewest and the most
Problem = tuple[str, int, list[str]]  # text, answer, steps such as "3*4=12"

LARGEST = 60  # of any number in a problem or its steps
TEST_SHARE = 10  # one text in ten is a test problem
NAMES = ("Ann", "Ben", "Eva", "Tom")
THINGS = ("apples", "books", "coins", "pens")


class Generated(LazyTasks):
    """Problem number i of a split: the same task in every run with the same seed."""

    def __init__(
        self, split: str, *, level: Level, kinds: Sequence[Kind], seed: int, size: int = ENDLESS
    ) -> None:
        self.split, self.level, self.kinds, self.seed, self.size = split, level, kinds, seed, size

    def make(self, index: int) -> Task:
        level = self._draw_level(index)
        random = Random(derive_seed("generated", self.split, level, self.seed, index))
        kind = random.choice(list(self.kinds))
        while True:
            text, answer, steps = _MAKERS[kind](random, level)
            is_test = derive_seed(text) % TEST_SHARE == 0
            if is_test == (self.split == "test") and answer >= 0:
                info: JsonObject = {"source": kind, "steps": [*steps]}
                if not isinstance(self.level, int):
                    info["level"] = level
                return Task(f"{kind}-{self.split}-{index}", text, str(answer), info)

    def _draw_level(self, index: int) -> int:
        if isinstance(self.level, int):
            return self.level
        return Random(derive_seed("level", self.split, self.seed, index)).randint(*self.level)


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


def _division(random: Random, level: int) -> Problem:
    """Return an expression such as `(3+9)/4*5` with at least one division, of which none leaves a
    remainder, and every value between 0 and LARGEST.
    """
    while True:
        text, value, steps = str(first := random.randint(2, 20)), first, list[str]()
        last = "*"
        at = random.randrange(level)  # the operation that is a division in any case
        for number in range(level):
            divisors = [right for right in range(2, 10) if value and value % right == 0]
            operator = "/" if number == at else random.choice("+-*/")
            if operator == "/" and not divisors:
                break
            right = random.choice(divisors) if operator == "/" else random.randint(2, 9)
            if operator in "*/" and last in "+-":
                text = f"({text})"
            text = f"{text}{operator}{right}"
            value, step = _step(value, operator, right)
            steps.append(step)
            last = operator
            if not 0 <= value <= LARGEST:
                break
        else:
            return f"Compute {text}.", value, steps


def _inequality(random: Random, level: int) -> Problem:
    """Return a question such as `Find the largest whole number x with 3*x+4<=21.`; the steps make
    it one for x alone.
    """
    while True:
        x = value = random.randint(2, 20)
        text, last, factor, undone = "x", "*", 1, list[tuple[str, int]]()
        for _ in range(level):
            operator = random.choice("+-*")
            right = random.randint(2, 9)
            if operator == "*":
                text = f"{right}*{text if last == '*' else f'({text})'}"
                factor *= right
            else:
                text = f"{text}{operator}{right}"
            value, _ = _step(value, operator, right)
            undone.insert(0, (operator, right))
            last = operator
            if not 0 <= value <= LARGEST:
                break
        else:
            sign = random.choice(("<", "<=", ">", ">="))
            sought = "largest" if sign in ("<", "<=") else "smallest"
            more = random.randrange(factor)  # that leaves x where it is
            bound = value + more if sought == "largest" else value - more
            steps, remaining = list[str](), bound
            if sign == "<":
                bound += 1
                steps.append(f"{bound}-1={remaining}")
            elif sign == ">":
                bound -= 1
                steps.append(f"{bound}+1={remaining}")
            for operator, right in undone:
                remaining, step = _undo(remaining, operator, right, sought=sought)
                steps.append(step)
            if min(bound, *_numbers(steps)) >= 0:
                assert remaining == x
                return f"Find the {sought} whole number x with {text}{sign}{bound}.", x, steps


def _undo(bound: int, operator: str, right: int, *, sought: str) -> tuple[int, str]:
    """Return the bound of y where y+right, y-right or y*right has this bound, and the step.

    A product's bound is rounded to the last multiple within it: `(17-2)/3=5`.
    """
    if operator != "*":
        return _step(bound, {"+": "-", "-": "+"}[operator], right)
    if sought == "largest":
        rest = bound % right
        shown = f"({bound}-{rest})" if rest else str(bound)
        return bound // right, f"{shown}/{right}={bound // right}"
    rest = -bound % right
    shown = f"({bound}+{rest})" if rest else str(bound)
    return (bound + rest) // right, f"{shown}/{right}={(bound + rest) // right}"


def _numbers(steps: list[str]) -> list[int]:
    """Return the results of steps."""
    return [int(step.rpartition("=")[2]) for step in steps]


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


_MAKERS: dict[Kind, Callable[[Random, int], Problem]] = {
    "expression": _expression,
    "equation": _equation,
    "word": _word,
    "division": _division,
    "inequality": _inequality,
}
