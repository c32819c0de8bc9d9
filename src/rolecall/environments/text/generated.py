"""Generates reports to be summarised, with the summaries that they should have.

What counts stands in sentences with a number; the others are said by the way. A report belongs to
the test split if the hash of its text says so.
"""

from __future__ import annotations

from random import Random

from rolecall.core.seeding import derive_seed
from rolecall.core.types import Task
from rolecall.data.sources import LazyTasks

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
