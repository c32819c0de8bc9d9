"""Generates programming problems with their solutions.

A problem keeps, changes and sums up numbers. Every step is a sentence for the text and a line for
the reference, so both say the same. A text belongs to the test split if its hash says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, Literal

from rolecall.core.interfaces.environment import ENDLESS
from rolecall.core.json_types import JsonObject
from rolecall.core.seeding import derive_seed
from rolecall.core.types import Task
from rolecall.data.sources import LazyTasks
from rolecall.environments.code.hidden_tests import Pair

Kind = Literal["function", "stdin"]
Step = tuple[str, str]  # sentence, line of the program

TEST_SHARE = 10  # one text in ten is a test problem
NUM_EXAMPLES, NUM_HIDDEN, NUM_WRONG = 2, 8, 2
NAMES = ("solve", "combine", "measure", "total", "digest")
STEPS: tuple[Step, ...] = (
    ("Keep those that are greater than {k}.", "values = [v for v in values if v > {k}]"),
    ("Keep those that {d} divides.", "values = [v for v in values if v % {d} == 0]"),
    ("Leave out those that {d} divides.", "values = [v for v in values if v % {d}]"),
    ("Multiply each by {d}.", "values = [v * {d} for v in values]"),
    ("Add {k} to each.", "values = [v + {k} for v in values]"),
    ("Replace each by its square.", "values = [v * v for v in values]"),
    ("Replace each by its distance from {k}.", "values = [abs(v - {k}) for v in values]"),
    ("Add to each its place, from 0.", "values = [v + i for i, v in enumerate(values)]"),
    ("Leave out repeats after the first.", "values = list(dict.fromkeys(values))"),
    ("Keep every second one, the first included.", "values = values[::2]"),
)
ENDS: tuple[Step, ...] = (
    ("{Give} their sum.", "answer = sum(values)"),
    ("{Give} how many are left.", "answer = len(values)"),
    ("{Give} the largest, or {k} if none is left.", "answer = max(values, default={k})"),
    ("{Give} the smallest, or {k} if none is left.", "answer = min(values, default={k})"),
    ("{Give} the last, or {k} if none is left.", "answer = values[-1] if values else {k}"),
    ("{Give} the sum of those before the last.", "answer = sum(values[:-1])"),
)


class GeneratedCode(LazyTasks):
    """Problem number i of a split: the same task in every run."""

    def __init__(
        self, split: str, *, level: int, kinds: Sequence[Kind], size: int = ENDLESS
    ) -> None:
        self.split, self.level, self.kinds, self.size = split, level, tuple(kinds), size

    def make(self, index: int) -> Task:
        random = Random(derive_seed("code", self.split, self.level, index))
        while True:
            kind = random.choice(self.kinds)
            task = _task(random, kind, self.level, name=f"{kind}-{self.split}-{index}")
            is_test = derive_seed(task.info["text"]) % TEST_SHARE == 0
            if is_test == (self.split == "test"):
                return task


def _task(random: Random, kind: Kind, level: int, *, name: str) -> Task:
    entry_point = random.choice(NAMES) if kind == "function" else ""
    while True:
        steps = _steps(random, level)
        inputs = _inputs(random)
        answers = _answers(steps, inputs)
        wrong = [_change(steps, random) for _ in range(NUM_WRONG)]
        kept = answers[NUM_EXAMPLES:]
        exposed = [_answers(changed, inputs)[NUM_EXAMPLES:] != kept for changed in wrong]
        # What is always the same is no problem, and what never differs no wrong program.
        if len(set(kept)) > 2 and all(exposed):
            break
    pairs = [_pair(entry_point, *both) for both in zip(inputs, answers, strict=True)]
    shown = pairs[:NUM_EXAMPLES]
    text = _text(steps, entry_point)
    form = "" if entry_point else " (input == output)"
    examples = "\n".join([f"Examples{form}:", *map(str, shown)])
    info: JsonObject = {
        "source": kind,
        "text": text,
        "entry_point": entry_point,
        "examples": [[pair.given, pair.expected] for pair in shown],
        "reference": _program(steps, entry_point),
        "wrong": [_program(changed, entry_point) for changed in wrong],
    }
    if kind == "function":
        hidden: JsonObject = {"pairs": [[p.given, p.expected] for p in pairs[NUM_EXAMPLES:]]}
    else:
        lines = [" ".join(map(str, values)) + "\n" for values in inputs[NUM_EXAMPLES:]]
        hidden = {"inputs": lines, "outputs": [str(answer) for answer in kept]}
    return Task(name, f"{text}\n\n{examples}", hidden, info)


def _steps(random: Random, level: int) -> list[Step]:
    """Return `level` different steps and an end, with their numbers filled in."""
    chosen = [*random.sample(STEPS, level), random.choice(ENDS)]
    return [_filled(step, random) for step in chosen]


def _filled(step: Step, random: Random) -> Step:
    numbers = {"k": random.randint(1, 9), "d": random.randint(2, 5), "Give": "{Give}"}
    return step[0].format(**numbers), step[1].format(**numbers)


def _change(steps: list[Step], random: Random) -> list[Step]:
    """Return the same problem with one step of another kind, or another number in it."""
    index = random.randrange(len(steps))
    other = random.choice(STEPS if index < len(steps) - 1 else ENDS)
    return [*steps[:index], _filled(other, random), *steps[index + 1 :]]


def _inputs(random: Random) -> list[list[int]]:
    """Different lists; the last of them is empty."""
    inputs: list[list[int]] = []
    while len(inputs) < NUM_EXAMPLES + NUM_HIDDEN - 1:
        values = [random.randint(-9, 20) for _ in range(random.randint(2, 8))]
        if values not in inputs:
            inputs.append(values)
    return [*inputs, []]


def _answers(steps: list[Step], inputs: list[list[int]]) -> list[int]:
    """Return the values that the lines compute; they are ours, nothing that a model wrote."""
    lines = compile("\n".join(line for _, line in steps), "<reference>", "exec")
    answers: list[int] = []
    for values in inputs:
        names: dict[str, Any] = {"values": values}
        exec(lines, names)
        answers.append(names["answer"])
    return answers


def _pair(entry_point: str, values: list[int], answer: int) -> Pair:
    if entry_point:
        return Pair(f"{entry_point}({values})", str(answer))
    return Pair(repr(" ".join(map(str, values))), repr(str(answer)))


def _text(steps: list[Step], entry_point: str) -> str:
    if entry_point:
        start = f"Write a function {entry_point}(values) of a list of whole numbers."
    else:
        start = "Read whole numbers from one line of the input; it may be empty."
    give = "Return" if entry_point else "Print"
    return " ".join([start, *(sentence for sentence, _ in steps)]).replace("{Give}", give)


def _program(steps: list[Step], entry_point: str) -> str:
    lines = [line for _, line in steps]
    if entry_point:
        body = "\n".join(f"    {line}" for line in [*lines, "return answer"])
        return f"def {entry_point}(values):\n{body}\n"
    return "\n".join(["values = [int(v) for v in input().split()]", *lines, "print(answer)", ""])
