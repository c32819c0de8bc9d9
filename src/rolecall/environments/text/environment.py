"""Poses writing tasks, and compares the texts with references.

For summaries, translations and whatever else has no single right answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from random import Random
from typing import Literal

from rolecall.core.interfaces.environment import ENDLESS, Observation, World
from rolecall.core.seeding import derive_seed
from rolecall.core.tags import visible
from rolecall.core.types import Episode, Task
from rolecall.data.data_locations import locate
from rolecall.data.sources import GENERATED, LazyTasks, gather, generates, list_sources
from rolecall.environments.text.reviews import ReviewWorld, read_rating, split_rating
from rolecall.environments.text.rows import text_tasks
from rolecall.grading.qa import targets
from rolecall.grading.text import REVIEW, Measure, Metric, check_words, measure

TEST_SHARE = 10  # one report in ten is a test report
MOST_FACTS = 5

PLACES = ("Borford", "Gulvale", "Lunport", "Nexhill", "Sabgate", "Torwell", "Vikmoor", "Zelbank")
FACTS = (
    "{place} opened a school for {number} children.",
    "{place} planted {number} trees along the river.",
    "{place} sold {number} tons of salt.",
    "A fire in {place} damaged {number} houses.",
    "{number} workers of the mill in {place} went on strike.",
)
ASIDES = (
    "The weather was mild for the season.",
    "Many people spoke of the old days.",
    "The mayor was pleased to see so many guests.",
    "A band played in the square until late.",
    "Nobody could say what comes next.",
    "The road was as dusty as ever.",
)
ORDER = "Summarise this report: one sentence for each event, with its place and its number."


class Reports(LazyTasks):
    """Report number i of a split, of `num_facts` events and as many sentences by the way."""

    def __init__(self, split: str, *, num_facts: int, size: int) -> None:
        self.split, self.num_facts, self.size = split, num_facts, size

    def make(self, index: int) -> Task:
        random = Random(derive_seed("report", self.split, self.num_facts, index))
        while True:
            facts = [
                kind.format(place=city, number=random.randint(12, 980))
                for kind, city in zip(
                    random.sample(FACTS, self.num_facts),
                    random.sample(PLACES, self.num_facts),
                    strict=True,
                )
            ]
            sentences = list(facts)
            for aside in random.sample(ASIDES, self.num_facts):
                sentences.insert(random.randint(0, len(sentences)), aside)
            text = " ".join(sentences)
            if (derive_seed(text) % TEST_SHARE == 0) == (self.split == "test"):
                name, info = f"report-{self.split}-{index}", {"source": "reports"}
                return Task(name, f"{ORDER}\n\n{text}", " ".join(facts), info)


class TextEnvironment:
    """Texts to write: `generated` reports to summarise, local files, or hub data sets."""

    def __init__(
        self,
        train: str | list[str] = GENERATED,
        test: str | list[str] = GENERATED,
        metric: Metric | Literal["review"] = "rougeL",
        question: str | None = None,
        reference: str | None = None,
        separator: str | None = None,
        facts: int | None = None,
        test_size: int | None = None,
    ) -> None:
        """train, test: `generated`, local files or hub data sets; one, or a list of several.
        metric: measure that compares a text with its references; `review` compares the rating in
            a review of a paper, and counts its sections, as ReviewRL does.
        question: column of files that holds the text; by default question.
        reference: column of files that holds one reference or a list of them; by default
            reference.
        separator: with metric: review, what stands in a reference between a review and its
            rating; by default the reference is the rating alone.
        facts: facts that a generated report holds; by default 2.
        test_size: generated test reports; by default 200.

        Options are errors where they have no effect.
        """
        self.sources = {"train": list_sources(train), "test": list_sources(test)}
        used = {*self.sources["train"], *self.sources["test"]}
        if used == {GENERATED} and (question or reference):
            raise ValueError(
                "question and reference have no effect, because no file is read; remove them, or "
                "name a file in train or test"
            )
        if metric != REVIEW and separator:
            raise ValueError("separator has no effect without metric: review; remove it")
        if metric == REVIEW and (GENERATED in used or separator == ""):
            raise ValueError(
                "metric: review needs files in train and test, whose references hold a rating"
            )
        generates(self.sources, facts=facts, test_size=test_size)
        if facts is not None and not 1 <= facts <= MOST_FACTS:
            raise ValueError(f"facts must be 1 to {MOST_FACTS} (it is {facts})")
        self.question, self.reference = question or "question", reference or "reference"
        self.facts, self.test_size = facts or 2, test_size or 200
        self.separator = separator
        self.measure: Measure | None = None if metric == REVIEW else measure(metric)
        self.is_rouge = metric.startswith("rouge")

    def tasks(self, split: str) -> Sequence[Task]:
        """Return the tasks of a split, "train" or "test".

        Raises ValueError for a missing source or a row without a text.
        """

        def read(source: str) -> Sequence[Task]:
            if source != GENERATED:
                path = locate(source, split=split)
                columns = {"question": self.question, "answer": self.reference}
                if self.measure is None:
                    tasks = text_tasks(path, **columns, check=self._check_rating)
                    return [split_rating(task, self.separator) for task in tasks]
                return text_tasks(path, **columns, check=check_words if self.is_rouge else None)
            size = ENDLESS if split == "train" else self.test_size
            return Reports(split, num_facts=self.facts, size=size)

        return gather(self.sources[split], read=read)

    def open(self, task: Task, *, seed: int) -> World:
        return ReviewWorld(task) if self.measure is None else TextWorld(task, self.measure)

    def _check_rating(self, task: Task) -> None:
        read_rating(task, self.separator)


class TextWorld(World):
    """Scores the answer, without its thinking, by its likeness to the nearest reference."""

    def __init__(self, task: Task, measure: Measure) -> None:
        self.task, self.measure = task, measure
        self.references = targets(task.answer)

    async def fork(self) -> TextWorld:
        return TextWorld(self.task, self.measure)

    async def step(self, agent: str, action: str) -> Observation:
        """Take a draft, which earns the team what it would score."""
        return Observation(visible(action), team=await self._likeness(action))

    async def score(self, episode: Episode) -> dict[str, float]:
        """Score the answer; an empty one, and one that the length limit cut, scores 0."""
        if episode.is_truncated:
            return {"team": 0.0}
        return {"team": await self._likeness(episode.answer)}

    async def _likeness(self, text: str) -> float:
        """Compute the likeness in a thread: ROUGE-L takes the product of two lengths."""
        reply = visible(text)
        return await asyncio.to_thread(self.measure, reply, self.references) if reply else 0.0
