"""Poses propositions to debate, and turns a judge's word into who won and who lost.

Generated propositions say what a calculation comes to, and half of them are wrong, so that it is
known who should have won. `topics` are open questions that come with the library.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

from rolecall.core.interfaces.environment import ENDLESS, World
from rolecall.core.seeding import derive_seed
from rolecall.core.types import Episode, Task
from rolecall.data.data_locations import locate
from rolecall.data.files import Row
from rolecall.data.sources import GENERATED, LazyTasks, gather, generates, list_sources
from rolecall.data.tasks import IncompleteRowError, read_tasks
from rolecall.environments.math.generated import Generated

SIDES = ("for", "against")
TOPICS = "topics"
TEST_TOPICS = 8  # the last ones of the file


class DebateEnvironment:
    """Propositions that are `generated`, `topics` that come with the library, or rows of files:
    `proposition`, and `side` if known.
    """

    def __init__(
        self,
        train: str | list[str] = GENERATED,
        test: str | list[str] = GENERATED,
        level: int | None = None,
        test_size: int | None = None,
    ) -> None:
        """train, test: `generated`, `topics`, local files or hub data sets; one, or a list of
            several. The 24 topics have `key_points`, and 8 of them are for tests.
        level: operations in a generated proposition; by default 2.
        test_size: generated test propositions; by default 200.

        Options of generated propositions are errors where nothing is generated.
        """
        self.sources = {"train": list_sources(train), "test": list_sources(test)}
        generates(self.sources, level=level, test_size=test_size)
        self.level, self.test_size = level or 2, test_size or 200

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the tasks of a split, "train" or "test".

        Raises ValueError for a missing source or a malformed row.
        """

        def read(source: str) -> Sequence[Task]:
            if source == TOPICS:
                topics = _propositions(Path(__file__).with_name("debate_topics.jsonl"))
                return topics[-TEST_TOPICS:] if split == "test" else topics[:-TEST_TOPICS]
            if source != GENERATED:
                return _propositions(locate(source, split=split))
            return Claims(split, self.level, ENDLESS if split == "train" else self.test_size)

        return gather(self.sources[split], read=read)

    def open(self, task: Task, *, seed: int) -> World:
        return DebateWorld(task)


class Claims(LazyTasks):
    """Claim number i of a split: true for one task and false for the next, as a seed has it."""

    def __init__(self, split: str, level: int, size: int) -> None:
        self.size = size
        self.sums = Generated(split, level=level, kinds=("expression",), seed=0, size=size)

    def make(self, index: int) -> Task:
        task = self.sums[index]
        random = Random(derive_seed("claim", task.prompt))
        true = random.random() < 0.5
        value = int(task.answer)
        claim = value if true else max(0, value + random.choice((-10, -2, -1, 1, 2, 10)))
        side = SIDES[claim != value]
        text = f"{task.prompt.removeprefix('Compute ').rstrip('.')} comes to {claim}."
        return replace(task, prompt=text, answer=side, info=task.info | {"value": task.answer})


def _propositions(path: Path) -> list[Task]:
    def make(row: Row, name: str) -> Task:
        text, side = row.get("proposition"), row.get("side")
        if not isinstance(text, str) or not text.strip():
            raise IncompleteRowError(f"no proposition; columns: {', '.join(row)}")
        if side is not None and side not in SIDES:
            raise ValueError(f"side is {side!r}, not for or against")
        info = {k: v for k, v in row.items() if k not in ("proposition", "side", "id")}
        return Task(name, text, side, {"source": path.stem} | info)

    return read_tasks(path, make)


class DebateWorld(World):
    """Pays +1 and -1, or 0 to both; a judge called `judge` earns 1 where it is known to be right.

    That agreement is the headline of the episode, a debate without a known side has none. It
    counts `debates`, `debates_a` that who was called A won, and of those whose right side is
    known `debates_known` and `debates_right`.
    """

    def __init__(self, task: Task) -> None:
        self.task = task

    async def score(self, episode: Episode) -> dict[str, float]:
        """Score a debate; raises ValueError for a workflow whose answer is not that of a debate."""
        try:
            result = json.loads(episode.answer)
            winner, debaters = result["winner"], result["debaters"]
            side, called = result["side"], result["called"]
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            raise ValueError(f"{episode.id} did not end as a debate does") from error
        episode.count("debates")
        if called == "a":
            episode.count("debates_a")
        paid = dict.fromkeys(debaters, 0.0)
        if winner in paid:
            paid = {name: 1.0 if name == winner else -1.0 for name in debaters}
        if self.task.answer is not None:
            right = side == self.task.answer
            episode.count("debates_known")
            if right:
                episode.count("debates_right")
            episode.judged_score = float(right)
            if any(turn.agent == "judge" for turn in episode.turns):
                paid["judge"] = float(right)
        return paid
