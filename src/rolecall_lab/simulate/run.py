"""Simulates the steps of a run in the order of `training/trainer.py`, and says where time went.

Consumes a workload, costs and a placement; produces one record a step. A step is unblocked by its
last episode, and ends with its publication.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import simpy

from rolecall_lab.simulate.costs import Costs
from rolecall_lab.simulate.engine import SimulatedEngine
from rolecall_lab.simulate.routing import Router
from rolecall_lab.simulate.workload import (
    SimulatedEpisode,
    SimulatedGroup,
    Workload,
    sampled_tokens,
    trained_tokens,
)

FIRST = 1000  # number of the first step that somebody looks at
Process = Generator[simpy.Event, Any, Any]


@dataclass(frozen=True, slots=True)
class Placement:
    """Says what samples, what trains, and whether they do so at the same time."""

    engines: int
    ranks: int
    together: bool = False
    """Engines and ranks are on the same GPUs and take turns."""
    staleness: int = 0
    """Updates that a rollout may lag behind (`trainer.max_staleness`)."""

    def gpus(self, each: int) -> int:
        """Return how many GPUs it takes with engines of `each`."""
        sampling = self.engines * each
        return max(sampling, self.ranks) if self.together else sampling + self.ranks


@dataclass(frozen=True, slots=True)
class Failure:
    """Something is lost, `at_s` seconds after the run's beginning."""

    at_s: float
    what: Literal["engine", "learner"]


@dataclass(slots=True)
class StepRecord:
    """Records where the time of one step went, in seconds."""

    step_s: float
    rollout_s: float
    """Until its last episode, as far as the trainer waited for it."""
    update_s: float
    publish_s: float
    fault_s: float
    sampled_tokens: int
    longest_s: float
    """Its longest episode, from beginning to end."""


@dataclass(slots=True)
class EpisodeRecord:
    """One episode: how long it took, and what its engine did meanwhile."""

    step: int
    wall_s: float
    work: tuple[float, ...]
    """`Counts.values` of its engine meanwhile."""
    waited_s: float
    """In tools and worlds."""
    rounds: int
    """Times that it asked."""


@dataclass(slots=True)
class SimulatedRun:
    """Holds what came out of a simulation."""

    steps: list[StepRecord]
    episodes: list[EpisodeRecord] = field(default_factory=list)
    engine_busy: list[float] = field(default_factory=list)
    """Of each step: the share of its time in which engines had rows, a mean over engines."""
    whole_s: float = 0.0


class Simulation:
    """One run on engines and ranks that only take time."""

    def __init__(
        self,
        steps: Sequence[Sequence[SimulatedGroup]],
        costs: Costs,
        placement: Placement,
        *,
        concurrency: int,
        until: int | None = None,
        failures: Sequence[Failure] = (),
        unsaved: int = 0,
    ) -> None:
        """`steps`: the groups of each; `until`: the step after which nobody looks, if not the last;
        `unsaved`: steps before them that no checkpoint holds.
        """
        self.env = simpy.Environment()
        self.todo, self.costs, self.placement = steps, costs, placement
        self.until = until or len(steps)
        self.concurrency, self.failures, self.unsaved = concurrency, failures, unsaved
        at_once = placement.engines + (placement.ranks if placement.staleness else 0)
        slow = costs.cores.slowdown(at_once)
        ranks = placement.ranks + (placement.engines if placement.staleness else 0)
        self.slow_update = costs.cores.slowdown(ranks)
        self.engines = [
            SimulatedEngine(self.env, costs.engine, slow) for _ in range(placement.engines)
        ]
        self.router = Router(self.env, self.engines)
        self.found = SimulatedRun([])
        self.fault_s = 0.0
        self._longest: dict[int, float] = {}
        self._ahead: deque[simpy.Process] = deque()
        self._trainer = self.env.process(self._train())

    def run(self) -> SimulatedRun:
        """Simulate the run to its end."""
        for failure in self.failures:
            self.env.process(self._fail(failure))
        self.env.run(until=self._trainer)
        self.found.whole_s = self.env.now
        return self.found

    # --- the trainer ---

    def _train(self) -> Process:
        for step in range(1, self.until + 1):
            yield from self._step(step)

    def _step(self, step: int) -> Process:
        begun, busy, faults = self.env.now, self._busy(), self.fault_s
        while len(self._ahead) <= self.placement.staleness and (
            step + len(self._ahead) <= len(self.todo)
        ):
            self._ahead.append(self.env.process(self._rollout(step + len(self._ahead))))
        yield from self._through(self._ahead.popleft(), step)
        collected = self.env.now
        groups = self.todo[step - 1]
        yield from self._spend(self._update_s(groups), step)
        updated = self.env.now
        yield from self._publish(step)
        whole = self.env.now - begun
        self.found.steps.append(
            StepRecord(
                step_s=whole,
                rollout_s=collected - begun,
                update_s=updated - collected,
                publish_s=self.env.now - updated,
                fault_s=self.fault_s - faults,
                sampled_tokens=sampled_tokens(groups),
                longest_s=self._longest.pop(step, 0.0),
            )
        )
        share = (self._busy() - busy) / (whole * len(self.engines)) if whole else 0.0
        self.found.engine_busy.append(share)

    def _update_s(self, groups: Sequence[SimulatedGroup]) -> float:
        costs = self.costs
        learned = costs.learner.seconds(trained_tokens(groups), self.placement.ranks)
        turns = costs.turn_taking_s if self.placement.together else 0.0
        return learned * self.slow_update + turns

    def _publish(self, step: int) -> Process:
        seconds = self.costs.publish.seconds
        yield self.env.all_of([engine.pause() for engine in self.engines])
        yield from self._spend(seconds, step)
        for engine in self.engines:
            engine.resume(reread=True)

    def _spend(self, seconds: float, step: int) -> Process:
        """Work that a failure of the learner undoes."""
        while True:
            try:
                yield self.env.timeout(seconds)
                return
            except simpy.Interrupt:
                yield from self._start_again(step)

    def _through(self, rollout: simpy.Process, step: int) -> Process:
        while True:
            try:
                yield rollout
                return
            except simpy.Interrupt:
                yield from self._start_again(step)

    def _start_again(self, step: int) -> Process:
        """The ranks are started again, and do again what no checkpoint holds.

        Episodes that were over are in journals; those under way begin their turns again.
        """
        begun = self.env.now
        done = step - 1 + self.unsaved
        again = done % self.costs.save_every
        yield self.env.all_of([engine.pause() for engine in self.engines])
        self.router.lost_all()
        earlier = self.todo[max(0, step - 2)]
        each = self._update_s(earlier) + self.costs.publish.seconds
        yield self.env.timeout(self.costs.restart_s + again * each)
        for engine in self.engines:
            engine.resume(reread=False)
        self.fault_s += self.env.now - begun

    # --- rollouts ---

    def _rollout(self, step: int) -> Process:
        todo = deque(
            (number, attempt, episode)
            for number, group in enumerate(self.todo[step - 1])
            for attempt, episode in enumerate(group)
        )
        yield self.env.timeout(self.costs.step_s)
        workers = min(self.concurrency, len(todo))
        yield self.env.all_of([self.env.process(self._work(step, todo)) for _ in range(workers)])
        for number, group in enumerate(self.todo[step - 1]):
            attempts = [(step, number, attempt) for attempt in range(len(group))]
            self.router.forget((step, number), list(attempts))

    def _work(self, step: int, todo: deque[tuple[int, int, SimulatedEpisode]]) -> Process:
        while todo:
            number, attempt, episode = todo.popleft()
            begun = self.env.now
            yield from self._play(step, number, attempt, episode)
            wall = self.env.now - begun
            self._longest[step] = max(self._longest.get(step, 0.0), wall)

    def _play(self, step: int, number: int, attempt: int, episode: SimulatedEpisode) -> Process:
        group, name = (step, number), (step, number, attempt)
        begun, waited = self.env.now, 0.0
        before: tuple[float, ...] | None = None
        position = 0
        for together in episode.rounds:
            if position and self.costs.environment_s:
                yield self.env.timeout(self.costs.environment_s)
                waited += self.costs.environment_s
            if self.costs.request_s:
                yield self.env.timeout(self.costs.request_s)
            requests = []
            over = together is episode.rounds[-1]
            for turn in together:
                last = over and turn is together[-1]
                requests.append(
                    self.router.sample(turn, place=position, group=group, attempt=name, last=last)
                )
                position += 1
            if before is None:
                before = self.router.home(name).counts.values
            yield self.env.all_of(requests) if len(requests) > 1 else requests[0]
        if before is not None:
            after = self.router.home(name).counts.values
            work = tuple(b - a for a, b in zip(before, after, strict=True))
            wall = self.env.now - begun
            self.found.episodes.append(EpisodeRecord(step, wall, work, waited, len(episode.rounds)))

    # --- what is lost ---

    def _fail(self, failure: Failure) -> Process:
        yield self.env.timeout(failure.at_s)
        if failure.what == "learner":
            if self._trainer.is_alive:
                self._trainer.interrupt()
            return
        engine = next((engine for engine in self.engines if engine.serves), None)
        if engine is None:
            return
        self.router.lost(engine)
        yield self.env.timeout(self.costs.restart_s)
        self.router.restore(engine)

    def _busy(self) -> float:
        return sum(engine.busy_s for engine in self.engines)


def simulate(
    workload: Workload,
    costs: Costs,
    placement: Placement,
    *,
    steps: int,
    before: int = 0,
    failures: Sequence[Failure] = (),
    unsaved: int = 0,
) -> SimulatedRun:
    """`steps` steps of a longer run: rollouts of those after them are under way at the end.

    `before`: those that nobody looks at, so that others are the same wherever they are simulated.
    """
    numbers = range(FIRST - before, FIRST - before + steps + placement.staleness)
    return Simulation(
        [workload.step(number) for number in numbers],
        costs,
        placement,
        concurrency=workload.concurrency,
        until=steps,
        failures=failures,
        unsaved=unsaved,
    ).run()
