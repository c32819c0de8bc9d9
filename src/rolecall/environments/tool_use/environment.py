"""Poses questions that need tools, and looks things up for agents.

The tools are those that an agent names in the config. `world` among them offers `lookup(name)` in
the facts of the task, where it has some.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Literal, get_args

from rolecall.core.interfaces.demonstrator import Line, Scene
from rolecall.core.interfaces.environment import ENDLESS, Observation, World
from rolecall.core.interfaces.tool import Tool, ToolError
from rolecall.core.json_types import JsonObject
from rolecall.core.seeding import derive_seed
from rolecall.core.tags import find_tag
from rolecall.core.types import Episode, Task
from rolecall.data.data_locations import locate
from rolecall.data.sources import GENERATED, LazyTasks, gather, generates, list_sources
from rolecall.environments.text.rows import text_tasks
from rolecall.environments.tool_use.demonstrations import demonstrate
from rolecall.grading.math.tidy import tidy
from rolecall.grading.math.values import Number, read
from rolecall.grading.qa import exact_match, targets
from rolecall.tools.functions import tool

Kind = Literal["one", "two", "delivered"]
TEST_SHARE = 10  # one question in ten is a test question

GOODS = ("lamp", "clock", "bell", "kettle", "ladder", "basket", "candle", "hammer", "mirror")
TOWNS = ("Borford", "Gulvale", "Lunport", "Nexhill", "Sabgate", "Torwell")
NUM_GOODS, NUM_TOWNS = 4, 3  # that a task's store knows


class Orders(LazyTasks):
    """Order number i of a split.

    one: 7 x lamp; two: 7 x lamp and 4 x bell; delivered: and the way from where they are made.
    """

    def __init__(self, split: str, *, kinds: tuple[Kind, ...], size: int) -> None:
        self.split, self.kinds, self.size = split, kinds, size

    def make(self, index: int) -> Task:
        random = Random(derive_seed("order", self.split, self.kinds, index))
        kind = random.choice(self.kinds)
        while True:
            text, answer, info = _order(random, kind)
            if (derive_seed(text) % TEST_SHARE == 0) == (self.split == "test"):
                name = f"{kind}-{self.split}-{index}"
                return Task(name, text, str(answer), {"source": kind} | info)


def _order(random: Random, kind: Kind) -> tuple[str, int, JsonObject]:
    """Return question, answer, and the facts with the look-ups and the sum that lead to it."""
    goods, towns = random.sample(GOODS, NUM_GOODS), random.sample(TOWNS, NUM_TOWNS)
    prices = {thing: random.randint(11, 99) for thing in goods}
    made_in = {thing: random.choice(towns) for thing in goods}
    fees = {town: random.randint(11, 99) for town in towns}
    facts = {
        thing: f"A {thing} costs {prices[thing]} coins. It is made in {made_in[thing]}."
        for thing in goods
    } | {town: f"Delivery from {town} costs {fees[town]} coins an order." for town in towns}
    ordered = {thing: random.randint(3, 48) for thing in goods[: 1 if kind == "one" else 2]}
    listed = " and ".join(f"{number} x {thing}" for thing, number in ordered.items())
    text = f"What does an order of {listed} cost, in coins?"
    names = list(ordered)
    sums = [f"{number}*{prices[thing]}" for thing, number in ordered.items()]
    answer = sum(number * prices[thing] for thing, number in ordered.items())
    if kind == "delivered":
        maker = made_in[goods[0]]
        where = f"the town in which the {goods[0]} is made"
        text = text.replace("?", f", with the delivery fee of {where}?")
        names.append(maker)
        sums.append(str(fees[maker]))
        answer += fees[maker]
    return text, answer, {"facts": facts, "lookups": names, "expression": " + ".join(sums)}


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

    def demonstrate(self, scene: Scene) -> Line:
        """Return what a good agent says; see `environments.tool_use.demonstrations`."""
        return demonstrate(scene)

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
            """What is known of something, by its name."""  # noqa: D401 - as `tiny:tools` has read it
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

    def find_answer(self, text: str) -> str | None:
        """Return the content of the last `<answer>`."""
        return find_tag(text, "answer")

    async def equal(self, one: str, other: str) -> bool:
        """Return whether two answers are the same number or text."""
        return is_same_answer(one, [other])

    async def score(self, episode: Episode) -> dict[str, float]:
        answer = self.find_answer(episode.answer)
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
