"""Several environments in one run: whose tasks they are, who plays them, and what is refused."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from rolecall.config.registry import check_options
from rolecall.config.schema import Named
from rolecall.core.errors import ConfigError
from rolecall.core.interfaces.environment import ENDLESS
from rolecall.core.types import Episode, Task
from rolecall.environments.math.environment import MathWorld
from rolecall.environments.mixed import MixedEnvironment, Mixture, mix_by_source
from rolecall.rollout.held_out import held_out
from rolecall.tools.use import ToolUse, WorldTools, check_kits
from tests import toy

LETTERS = f"{Path(toy.__file__).resolve()}:Letters"
HERE = Path(__file__).resolve()


class Closing(toy.Letters):
    """Remembers that it was closed, and cannot be closed twice."""

    def __init__(self) -> None:
        super().__init__()
        self.closed = False

    async def close(self) -> None:
        if self.closed:
            raise RuntimeError("closed already")
        self.closed = True


def mixed(**of) -> MixedEnvironment:
    """As the config makes it."""
    named = Named(name="mixed", of=of)
    options = check_options(MixedEnvironment, named.options, key="environment", skip=0)
    return MixedEnvironment(**options)


def listed(name: str, number: int, source: str = "") -> list[Task]:
    return [Task(f"{name}{i}", "?", None, {"source": source or name}) for i in range(number)]


class Measuring(toy.Letters):
    """Says how many episodes it was shown."""

    def measures(self, episodes: list[Episode]) -> dict[str, float]:
        return {"episodes": len(episodes)}


def test_each_part_measures_its_own_episodes():
    environment = mixed(
        own=f"{HERE}:Measuring", other=f"{HERE}:Measuring", absent=f"{HERE}:Measuring", sums="math"
    )
    tasks = [
        Task(f"{i}", "?", None, {"family": family})
        for i, family in enumerate(["own", "sums", "own", "other"])
    ]
    episodes = [Episode(task.id, task, 0, 0) for task in tasks]
    assert environment.measures(episodes) == {"own/episodes": 2, "other/episodes": 1}


def test_a_task_knows_its_family_and_keeps_its_source():
    tasks = mixed(sums={"name": "math", "weight": 2}, letters=LETTERS).tasks("train")
    assert isinstance(tasks, Mixture)
    assert tasks.weights == {"sums": 2.0, "letters": 1.0}
    first, second, third = tasks[:3]
    assert (first.family, second.family, third.family) == ("sums", "letters", "sums")
    assert first.source in ("expression", "equation", "word")
    assert (second.id, second.source) == ("letters/train-0", "letters")
    assert [tasks.source_name(task) for task in (first, second)] == ["sums", "letters"]
    assert len(tasks) == ENDLESS + 64


def test_parts_of_one_environment_have_ids_of_their_own():
    hard = {"name": "math", "level": 3, "test_size": 20}
    environment = mixed(easy={"name": "math", "test_size": 30}, hard=hard)
    tasks = [*environment.tasks("train")[:100], *environment.tasks("test")]
    assert len({task.id for task in tasks}) == len(tasks) == 150
    assert max(len(t.info["steps"]) for t in tasks if t.family == "easy") == 2
    assert min(len(t.info["steps"]) for t in tasks if t.family == "hard") == 3


def test_held_out_tasks_are_counted_by_source_within_each_part():
    environment = mixed(
        easy={"name": "math", "kinds": ["word"]},
        hard={"name": "math", "kinds": ["word", "equation"], "level": 3},
    )
    kept = held_out(environment.tasks("test"), per_source=5)
    counted = Counter((task.family, task.source) for task in kept)
    assert counted == {("easy", "word"): 5, ("hard", "word"): 5, ("hard", "equation"): 5}


def test_a_world_is_of_the_part_that_made_the_task_and_sees_what_the_part_made():
    environment = mixed(sums="math", letters=LETTERS)
    sums, letters = environment.tasks("train")[:2]
    world = environment.open(sums, seed=0)
    assert isinstance(world, MathWorld)
    assert world.task.id == sums.id.removeprefix("sums/")
    assert "family" not in world.task.info
    assert type(environment.open(letters, seed=0)).__name__ == "LettersWorld"


def test_closing_closes_every_part_also_after_one_that_raises():
    environment = mixed(one=f"{HERE}:Closing", two=f"{HERE}:Closing", letters=LETTERS)
    environment.parts["two"].closed = True
    with pytest.raises(RuntimeError, match="closed already"):
        asyncio.run(environment.close())
    assert environment.parts["one"].closed


def test_a_mixture_takes_turns_until_a_part_has_no_more():
    parts = {"a": listed("a", 3), "b": listed("b", 1), "c": listed("c", 2)}
    mixture = Mixture(parts, dict.fromkeys(parts, 1.0), label="source")
    assert [task.id for task in mixture] == ["a0", "b0", "c0", "a1", "c1", "a2"]
    with pytest.raises(IndexError):
        mixture[6]


def test_sources_become_equal_parts():
    mixture = mix_by_source([*listed("x", 2, "aime"), *listed("y", 5, "gsm8k")])
    assert {name: len(part) for name, part in mixture.parts.items()} == {"aime": 2, "gsm8k": 5}
    assert set(mixture.weights.values()) == {1.0}
    with pytest.raises(ValueError, match="of one source"):
        mix_by_source(listed("x", 2))
    with pytest.raises(ValueError, match="without end"):
        mix_by_source(mixed(a="math", b=LETTERS).parts["a"].tasks("train"))
    with pytest.raises(ValueError, match="have weights"):
        mix_by_source(mixture)


@pytest.mark.parametrize(
    ("of", "said"),
    [
        ({"a": "math"}, "at least two parts"),
        ({"a": "math", "b": "maths"}, r"environment\.of\.b\.name: there is no .*math"),
        ({"a": "math", "b": {"name": "math", "levle": 1}}, r"of\.b\.levle: unknown key.*level"),
        ({"a": "math", "b": {"name": "math", "level": "x"}}, r"environment\.of\.b\.level: "),
        ({"a": "math", "b": {"name": "math", "level": 9}}, r"^environment\.of\.b: level must"),
        ({"a": "math", "b": {"name": "math", "weight": 0}}, r"environment\.of\.b\.weight: "),
        ({"a": "math", "b": {"name": "mixed", "of": {}}}, r"environment\.of\.b\.name: a part"),
        ({"a": "math", "b/c": "math"}, r"environment\.of\.b/c"),
    ],
)
def test_what_does_not_fit_is_named_by_its_dotted_key(of, said):
    with pytest.raises(ValueError, match=said):
        mixed(**of)


def test_a_missing_file_is_named_by_its_part():
    environment = mixed(a="math", b={"name": "math", "train": "nowhere.jsonl"})
    with pytest.raises(ConfigError, match=r"^environment\.of\.b: .*nowhere"):
        environment.tasks("train")


def worlds_of(environment: MixedEnvironment) -> dict:
    """The world of the first train task of each part."""
    parts = environment.tasks("train").parts
    return {name: environment.open(tasks[0], seed=0) for name, tasks in parts.items()}


def test_an_agent_has_the_tools_of_the_worlds_of_those_parts_that_offer_some():
    async def offered(world):
        async with WorldTools().open(world, seed=0) as tools:
            return [tool.name for tool in tools]

    worlds = worlds_of(mixed(letters=LETTERS, orders="tool_use"))
    assert asyncio.run(offered(worlds["letters"])) == []
    assert asyncio.run(offered(worlds["orders"])) == ["lookup"]


def check_world_tools(environment: MixedEnvironment) -> None:
    openers = [lambda world=world: world for world in worlds_of(environment).values()]
    asyncio.run(check_kits({"solver": ToolUse((WorldTools(),))}, worlds=openers))


@pytest.mark.parametrize("of", [{"a": LETTERS, "b": "tool_use"}, {"a": "tool_use", "b": LETTERS}])
def test_the_tools_of_worlds_are_there_where_one_part_has_some(of):
    check_world_tools(mixed(**of))


def test_the_tools_of_worlds_are_refused_where_no_part_has_any():
    with pytest.raises(ConfigError, match="LettersWorld offers no tools"):
        check_world_tools(mixed(a=LETTERS, b=LETTERS))
