"""Plays held-out tasks and scores the team on them, however many there are.

A group of attempts is counted, handed on and forgotten as soon as it has ended, so memory holds
those under way. With journals an evaluation that was killed goes on where it stopped.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Protocol

from rolecall.config.evaluation import EvaluationConfig
from rolecall.core.types import Episode, Task
from rolecall.rollout import group_player
from rolecall.rollout.costs import Costs
from rolecall.rollout.episodes import PlaySettings, Rollout, RolloutContext
from rolecall.rollout.evaluation_summary import Tally
from rolecall.rollout.group_player import Collection
from rolecall.runtime.spending import Prices

ROUND = 4096  # attempts that a deterministic engine plays as one round
TAKE_S = 2.0  # between two looks at what has ended


class Journal(group_player.Journal, Protocol):
    """The journal of one round."""

    def stream(self) -> Iterator[Episode]: ...
    def remove(self) -> None: ...
    def close(self) -> None: ...


class Journals(Protocol):
    """Keeps what was played, so that a later process finds it."""

    @property
    def read_counts(self) -> dict[str, Any]: ...
    def round(self, number: int) -> Journal: ...
    def count(self, seconds: float, failures: dict[str, int]) -> None: ...


class Sink(Protocol):
    """Receives all episodes, those that failed included."""

    def write(self, episodes: list[Episode]) -> None: ...


@dataclass(frozen=True, slots=True)
class EvaluationOutputs:
    """Options of an evaluation beside playing; nothing of it is needed."""

    prices: Mapping[str, Prices] = field(default_factory=lambda: MappingProxyType({}))
    sink: Sink | None = None
    journals: Journals | None = None
    forget: Callable[[], Awaitable[None]] | None = None
    """Of a deterministic engine, as if it had just started: rows of a batch depend on which
    episodes share it, so it plays rounds, and one that was cut short is played again."""


async def evaluate(
    context: RolloutContext,
    tasks: list[Task],
    options: EvaluationConfig,
    *,
    split: str = "test",
    around: EvaluationOutputs | None = None,
) -> dict[str, Any]:
    """Play every task as often as the options say. The same seeds in every call, so that calls
    compare.

    Returns what `Tally.summary` says, with `cost` and with `time/` of all processes that were at
    it. `coverage` is the share of the attempts that could be scored: those that something outside
    of the team let down are in no mean. Raises RuntimeError where all of them failed.
    """
    playing = _Evaluation(context, options, split, around or EvaluationOutputs())
    for number, some in enumerate(playing.rounds(tasks), 1):
        await playing.play(some, number)
    return playing.summary(sum(options.samples_per_task(task.source) for task in tasks))


class _Evaluation:
    """One that is under way."""

    def __init__(
        self,
        context: RolloutContext,
        options: EvaluationConfig,
        split: str,
        around: EvaluationOutputs,
    ) -> None:
        manner = PlaySettings(tries_out=False, sampling=options.sampled_with)
        self.context = context.with_settings(manner)
        self.options, self.split, self.around = options, split, around
        self.tally, self.costs = Tally(options), Costs(around.prices)
        before = around.journals.read_counts if around.journals is not None else {}
        self.failures: Counter[str] = Counter(before.get("failures", {}))
        self.started = time.monotonic() - before.get("seconds", 0.0)
        self.first_error = ""
        self.measures = getattr(context.environment, "measures", None)
        self.measured: list[Episode] = []  # all of them, where the environment asks for all

    def size(self, task: Task) -> int:
        return self.options.samples_per_task(task.source)

    def rounds(self, tasks: list[Task]) -> Iterator[list[Task]]:
        """Yield all tasks at once, or in the rounds of a deterministic engine."""
        some: list[Task] = []
        attempts = 0
        for task in tasks:
            if some and self.around.forget is not None and attempts + self.size(task) > ROUND:
                yield some
                some, attempts = [], 0
            some.append(task)
            attempts += self.size(task)
        if some:
            yield some

    async def play(self, tasks: list[Task], number: int) -> None:
        """Play one round, less what its journal has."""
        journals, forget = self.around.journals, self.around.forget
        journal = None if journals is None else journals.round(number)
        remaining, finished = tasks, list[Episode]()
        if journal is not None:
            if forget is not None and not self._is_whole(journal, tasks):
                journal.remove()
            remaining, finished = self._taken_over(journal, tasks)
        if forget is not None and remaining:
            await forget()
        playing = Collection(
            self.context, remaining, step="evaluation", split=self.split, group_size=self.size,
            journal=journal, finished=finished,
        )  # fmt: skip
        try:
            while playing.open:
                await playing.wait(within_s=TAKE_S)
                self._take(playing.take())
                if forget is None:
                    self._note()
        finally:
            if journal is not None:
                journal.close()
        self._note()

    def summary(self, asked: int) -> dict[str, Any]:
        """Return the scores, failures and costs of the evaluation; `asked`: attempts in all."""
        if not self.tally.tasks:
            raise RuntimeError(f"every evaluation episode failed; the first: {self.first_error}")
        metrics = self.tally.summary()
        if self.measures is not None:
            metrics |= self.measures(self.measured)
        return metrics | {
            "coverage": self.tally.num_scored / asked,
            "failures": dict(self.failures),
            "cost": self.costs.summary(),
            "time/evaluation_s": time.monotonic() - self.started,
            **self.costs.latencies(),
        }

    def _is_whole(self, journal: Journal, tasks: list[Task]) -> bool:
        """Return whether every attempt of a round has ended well."""
        played = {(e.task.id, e.attempt) for e in journal.stream() if e.error is None}
        return len(played) == sum(map(self.size, tasks))

    def _taken_over(self, journal: Journal, tasks: list[Task]) -> tuple[list[Task], list[Episode]]:
        """Count the groups that a journal has whole. The tasks that are left, and what has been
        played of them; attempts that failed are made again.
        """
        parts: dict[str, dict[int, Episode]] = {task.id: {} for task in tasks}
        sizes = {task.id: self.size(task) for task in tasks}
        for episode in journal.stream():
            by_attempt = parts.get(episode.task.id)
            if by_attempt is None or episode.error is not None:
                continue
            by_attempt.setdefault(episode.attempt, episode)
            if len(by_attempt) == sizes[episode.task.id]:
                self._count([by_attempt[attempt] for attempt in sorted(by_attempt)])
                del parts[episode.task.id]
        remaining = [task for task in tasks if task.id in parts]
        return remaining, [
            episode for by_attempt in parts.values() for episode in by_attempt.values()
        ]

    def _take(self, rollout: Rollout) -> None:
        for group in rollout.groups:
            self._count(group)
        self._hand_on(rollout.unused)
        self.failures += rollout.failures
        self.first_error = self.first_error or rollout.first_error

    def _count(self, group: list[Episode]) -> None:
        self.tally.add(group)
        self._hand_on(group)
        if self.measures is not None:
            self.measured += group

    def _hand_on(self, episodes: list[Episode]) -> None:
        self.costs.add(episodes)
        if self.around.sink is not None:
            self.around.sink.write(episodes)

    def _note(self) -> None:
        if self.around.journals is not None:
            self.around.journals.count(time.monotonic() - self.started, dict(self.failures))
