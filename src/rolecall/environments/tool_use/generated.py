"""Generates orders whose price takes several look-ups and a calculation.

Prices and places are another task's own, so nothing can be known by heart. A question belongs to
the test split if the hash of its text says so.
"""

from __future__ import annotations

from random import Random
from typing import Literal

from rolecall.core.json_types import JsonObject
from rolecall.core.seeding import derive_seed
from rolecall.core.types import Task
from rolecall.data.sources import LazyTasks

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
