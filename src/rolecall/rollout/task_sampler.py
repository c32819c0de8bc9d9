"""Samples the tasks of a step, by shares where the train split has parts.

What is sampled depends on the seed and the step and, with a curriculum, on finished steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from fractions import Fraction
from math import lcm
from typing import Any, TypeVar

import numpy as np

from rolecall.core.interfaces.environment import ENDLESS
from rolecall.core.seeding import derive_seed
from rolecall.core.types import Episode, Task
from rolecall.environments.mixed import Mixture
from rolecall.rollout.curriculum import PassRates

T = TypeVar("T")
WINDOW = 4  # tasks of an endless part that a curriculum looks at, for each that it draws


class Shares:
    """Divides each step's tasks among parts in exact shares, whose rests later steps make up.

    In a step, each task goes to the part that is furthest behind its share, so that no part is
    ever ahead by a whole task. Weights 2 and 1, steps of 4: (3, 1), (2, 2), (3, 1), (3, 1), ...
    """

    def __init__(self, weights: Mapping[str, float], number: int) -> None:
        """Set up the shares of sources; `number`: tasks of a step."""
        exact = {name: Fraction(str(weight)) for name, weight in weights.items()}
        shares = {name: weight / sum(exact.values()) for name, weight in exact.items()}
        self.unit = lcm(*(share.denominator for share in shares.values()))  # one task is this much
        self.gains = {name: int(share * self.unit * number) for name, share in shares.items()}
        self.number = number
        self.due = dict.fromkeys(weights, 0)
        self.given: list[Counter[str]] = []  # by each step so far

    def count_parts(self, step: int) -> Counter[str]:
        while len(self.given) < step:
            self.given.append(self._next())
        return self.given[step - 1]

    def _next(self) -> Counter[str]:
        counts: Counter[str] = Counter()
        for name, gain in self.gains.items():
            self.due[name] += gain
        for _ in range(self.number):
            furthest = max(self.due, key=self.due.__getitem__)  # of equal ones the first
            self.due[furthest] -= self.unit
            counts[furthest] += 1
        return counts


class TaskSampler:
    """Says which tasks a step takes, and learns how they went."""

    def __init__(
        self, train: Sequence[Task], *, groups: int, seed: int, rates: PassRates | None = None
    ) -> None:
        self.train, self.groups, self.seed, self.rates = train, groups, seed, rates
        self.parts, self.weights = {"": train}, {"": 1.0}
        if isinstance(train, Mixture):
            self.parts, self.weights = train.parts, train.weights
        self.shares = Shares(self.weights, groups)

    def sample(
        self,
        step: int,
        *,
        number: int = 0,
        kept: Iterable[Task] = (),
        seen: Collection[str] = (),
    ) -> list[Task]:
        """Return the tasks of round `number` of a step: those that `kept` ones leave missing.

        None has an id in `seen`; a part that runs out of tasks gives fewer.
        """
        missing = self.counts(step) - Counter(self.source_name(task) for task in kept)
        return [
            task
            for name in self.parts
            if missing[name]
            for task in self._of_part(name, missing[name], step=step, number=number, seen=seen)
        ]

    def counts(self, step: int) -> Counter[str]:
        """Return how many tasks of each part a step takes."""
        if self.rates is None or self.rates.config.by != "family":
            return self.shares.count_parts(step)
        weights = {n: w * self.rates.weight(n, step=step) for n, w in self.weights.items()}
        return round_shares(weights, self.groups, seed=derive_seed(self.seed, "shares", step))

    def largest_counts(self, steps: int) -> Counter[str]:
        """Return the most tasks of each part that one of these steps may take."""
        counts: Counter[str] = Counter()
        if self.rates is not None and self.rates.config.by == "family":
            return Counter(dict.fromkeys(self.parts, self.groups))
        for step in range(1, steps + 1):
            counts |= self.shares.count_parts(step)
        return counts

    def source_name(self, task: Task) -> str:
        return self.train.source_name(task) if isinstance(self.train, Mixture) else ""

    def _of_part(
        self, name: str, missing: int, *, step: int, number: int, seen: Collection[str]
    ) -> list[Task]:
        tasks, seed = self.parts[name], derive_seed(self.seed, name) if name else self.seed
        if self.rates is not None:
            order = derive_seed(seed, "curriculum", step, number)
            offered = (
                window(tasks, WINDOW * missing, seed=order) if len(tasks) >= ENDLESS else tasks
            )
            remaining = [task for task in offered if task.id not in seen]
            weights = [self.rates.weight(self.rates.key(task), step=step) for task in remaining]
            return draw_weighted(remaining, weights, number=missing, seed=order)
        if number == 0:
            counts = [step_counts[name] for step_counts in self.shares.given[: step - 1]]
            return draw(tasks, missing, seed=seed, taken=counts)
        offered = draw(
            tasks,
            min(len(tasks), missing + len(seen)),
            seed=derive_seed(seed, "more", step, number),
        )
        return [task for task in offered if task.id not in seen][:missing]

    def update(self, step: int, episodes: Iterable[Episode]) -> None:
        """Learn from all that a step played, with groups that were left out of training."""
        if self.rates is not None:
            self.rates.update(step, episodes)

    def state_dict(self) -> dict[str, Any]:
        return {} if self.rates is None else self.rates.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self.rates is not None:
            self.rates.load_state_dict(state)


def draw(items: Sequence[T], number: int, *, seed: int, taken: Sequence[int] = ()) -> list[T]:
    """Draw in order from an endless sequence; shuffle a finite one anew each epoch.

    `taken`: how many each earlier step took. A step never holds one item twice: if the rest of an
    epoch is too short for it, the next one begins.
    """
    size = len(items)
    if size >= ENDLESS:
        first = derive_seed(seed, "tasks") % (size // 2) + sum(taken)
        return [items[(first + i) % size] for i in range(number)]
    epoch = end = 0
    for count in (*taken, number):
        if end + count > size:
            epoch, end = epoch + 1, 0
        end += count
    order = np.random.default_rng(derive_seed(seed, "epoch", epoch)).permutation(size)
    return [items[int(i)] for i in order[end - number : end]]


def window(items: Sequence[T], number: int, *, seed: int) -> list[T]:
    """Return consecutive items of an endless sequence."""
    first = seed % (len(items) // 2)
    return [items[first + i] for i in range(number)]


def draw_weighted(
    items: Sequence[T], weights: Sequence[float], *, number: int, seed: int
) -> list[T]:
    """Draw items without repetition, each in proportion to its weight among those left.

    The first arrivals of independent exponential clocks (Efraimidis and Spirakis, 2006).
    """
    clocks = np.random.default_rng(seed).exponential(size=len(items)) / np.asarray(weights)
    return [items[int(i)] for i in np.argsort(clocks, kind="stable")[:number]]


def round_shares(weights: Mapping[str, float], number: int, *, seed: int) -> Counter[str]:
    """Whole shares of `number` whose means over seeds are exact: (2, 1) of 4 is (3, 1) or (2, 2).

    Systematic sampling: one random offset, so that each is its share rounded down or up.
    """
    ends = np.cumsum(list(weights.values()))
    places = np.floor(ends / ends[-1] * number + np.random.default_rng(seed).random())
    counts = np.diff(places, prepend=0.0)
    return Counter({name: int(count) for name, count in zip(weights, counts, strict=True)})
