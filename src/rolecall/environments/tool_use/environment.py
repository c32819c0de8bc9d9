"""Poses questions that need tools, and looks things up for agents.

The tools are those that an agent names in the config. `world` among them offers `lookup(name)` in
the facts of the task, where it has some.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from rolecall.core.interfaces.environment import ENDLESS, Observation, World
from rolecall.core.interfaces.tool import Tool, ToolError
from rolecall.core.tags import find_tag
from rolecall.core.types import Episode, Task
from rolecall.data.data_locations import locate
from rolecall.data.sources import GENERATED, gather, generates, list_sources
from rolecall.environments.text.rows import text_tasks
from rolecall.environments.tool_use.generated import Kind, Orders
from rolecall.grading.math.tidy import tidy
from rolecall.grading.math.values import Number, read
from rolecall.grading.qa import exact_match, targets
from rolecall.tools.functions import tool

NOTICE = "There was nothing between answer tags."


class ToolUseEnvironment:
    """Questions that are `generated`, or rows `question`, `answer` and, if any, `facts`.

    Facts are what is known of each name: {"lamp": "A lamp costs 14 coins."}.
    """

    def __init__(
        self,
        train: str | list[str] = GENERATED,
        test: str | list[str] = GENERATED,
        kinds: list[Kind] | None = None,
        test_size: int | None = None,
    ) -> None:
        """train, test: `generated`, local files or hub data sets; one, or a list of several.
        kinds: kinds of generated questions; by default all.
        test_size: generated test questions; by default 200.

        Options of generated questions are errors where nothing is generated.
        """
        self.sources = {"train": list_sources(train), "test": list_sources(test)}
        generates(self.sources, kinds=kinds, test_size=test_size)
        self.kinds: tuple[Kind, ...] = tuple(kinds or get_args(Kind))
        self.test_size = test_size or 200

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the tasks of a split, "train" or "test".

        Raises ValueError for a missing source or a malformed row.
        """

        def read_in(source: str) -> Sequence[Task]:
            if source != GENERATED:
                path = locate(source, split=split)
                return text_tasks(path, question="question", answer="answer", check=read_facts)
            size = ENDLESS if split == "train" else self.test_size
            return Orders(split, kinds=self.kinds, size=size)

        return gather(self.sources[split], read=read_in)

    def open(self, task: Task, *, seed: int) -> World:
        return ToolUseWorld(task)


class ToolUseWorld(World):
    """Scores the last `<answer>` of the workflow's answer: 1 if it is an accepted one, else 0."""

    def __init__(self, task: Task) -> None:
        self.task, self.facts, self.accepted = task, read_facts(task), targets(task.answer)

    async def fork(self) -> ToolUseWorld:
        return ToolUseWorld(self.task)

    def tools(self) -> list[Tool]:
        @tool
        async def lookup(name: str) -> str:
            """Look up what is known of something, by its name."""
            fact = self.facts.get(name.strip().casefold())
            if fact is None:
                raise ToolError(f"nothing is known of {name!r}")
            return fact

        return [lookup] if self.facts else []

    async def step(self, agent: str, action: str) -> Observation:
        """End the episode at an `<answer>`; without one return a notice."""
        answer = find_tag(action, "answer")
        if not answer:
            return Observation(NOTICE)
        return Observation(answer, team=float(is_same_answer(answer, self.accepted)), done=True)

    async def score(self, episode: Episode) -> dict[str, float]:
        answer = find_tag(episode.answer, "answer")
        if not answer or episode.is_truncated:
            return {"team": 0.0}
        return {"team": float(is_same_answer(answer, self.accepted))}


def is_same_answer(given: str, accepted: Sequence[str]) -> bool:
    """Compare numbers by their value, anything else as in SQuAD.

    same_answer("1,240 coins", ["1240"]) -> True; same_answer("3.5", ["35"]) -> False
    """
    value = read(tidy(given))
    for answer in accepted:
        number = read(tidy(answer))
        if isinstance(number, Number):
            if isinstance(value, Number) and value.value == number.value:
                return True
        elif exact_match(given, [answer]):
            return True
    return False


def read_facts(task: Task) -> dict[str, str]:
    """Return the facts by lower-case name. Raises ValueError for facts of another form."""
    facts = task.info.get("facts") or {}
    if not isinstance(facts, dict):
        raise ValueError(f"facts must be a mapping of names, got {type(facts).__name__}")
    present = {name: fact for name, fact in facts.items() if fact is not None}  # parquet's gaps
    wrong = [name for name, fact in present.items() if not isinstance(fact, str | int | float)]
    if wrong:
        raise ValueError(f"the fact of {wrong[0]!r} is neither text nor a number")
    return {name.strip().casefold(): str(fact) for name, fact in present.items()}
