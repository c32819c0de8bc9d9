"""Simulates an engine, which decodes in lockstep: it jumps from change to change of its batch.

Consumes rows with known lengths, and fires each one's `done` after the pass that gave its last
token. Between two changes of its batch every pass takes equally long, so nothing happens there.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, deque
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import simpy

from rolecall_lab.simulate.costs import EngineCosts

NEARLY = 1e-9  # of a pass: what rounding leaves of a boundary


@dataclass(slots=True, eq=False)
class Row:
    """One request."""

    tokens: int
    """To be sampled, one at least."""
    context: int
    """Tokens of its prompt, which are read again where the engine has lost them."""
    unread: int
    """Those of them that the engine has not read yet."""
    model: str
    done: simpy.Event
    last: bool = False
    """With it its episode ends."""
    begun: int = 0
    """Passes of the engine before its first one."""


@dataclass(slots=True)
class Counts:
    """Counts what an engine has done, to which its seconds are fitted."""

    passes: float = 0.0
    """A pass over rows of two models is two."""
    rows: float = 0.0
    """Rows of all passes."""
    prompt_tokens: float = 0.0
    episodes: float = 0.0
    """That have ended."""

    @property
    def values(self) -> tuple[float, float, float, float]:
        return self.passes, self.rows, self.prompt_tokens, self.episodes


@dataclass(eq=False)
class SimulatedEngine:
    """One engine. `slowdown`: how many times as long all takes, where cores are shared."""

    env: simpy.Environment
    costs: EngineCosts
    slowdown: float = 1.0
    serves: bool = True
    load: int = 0
    """Rows that it has been asked for and has not given."""
    counts: Counts = field(default_factory=Counts)
    busy_s: float = 0.0
    known: set[Any] = field(default_factory=set)
    """Names of the prompts' shared beginnings that it has read with these weights."""

    def __post_init__(self) -> None:
        self._waiting: deque[Row] = deque()
        self._ends: list[tuple[int, int, Row]] = []  # a heap of (pass after which it ends, order)
        self._models: Counter[str] = Counter()
        self._order = count()
        self._passes = 0  # so far
        self._closing: Counter[int] = Counter()  # pass -> episodes that end with it
        self._paused = self._reread = False
        self._boundary: simpy.Event | None = None  # that somebody waits for
        self._moving = False  # a part of the work is under way, or about to begin
        self._version = 0  # of the part under way: earlier ones no longer end
        self._since = self._reading_s = self._pass_s = 0.0
        self._number = 0  # passes until the part ends

    def ask(self, row: Row) -> None:
        """Take a row; it stands in the batch from the next pass on that has room."""
        self.load += 1
        self._waiting.append(row)
        if not self._moving:
            self._begin_soon()
        elif self._number and len(self._ends) < self.costs.max_rows:
            self._cut()

    def pause(self) -> simpy.Event:
        """Stop after the pass under way; the event fires then."""
        self._paused = True
        stopped = self.env.event()
        if self._number:
            self._boundary = stopped
            self._cut()
        else:
            stopped.succeed()
        return stopped

    def resume(self, *, reread: bool) -> None:
        """Go on; `reread`: with new weights, under which the rows' tokens are read again."""
        self._paused = False
        if reread:
            self.known.clear()
            self._reread = True
        if not self._moving:
            self._begin_soon()

    def lose(self) -> list[Row]:
        """Lose everything under way and return the rows that somebody still waits for."""
        lost = [row for _, _, row in sorted(self._ends)] + list(self._waiting)
        self._account(0)
        self._ends, self._models, self._closing = [], Counter(), Counter()
        self._waiting.clear()
        self.known.clear()
        self.load = 0
        self._version += 1
        self._moving, self._number = False, 0
        if self._boundary is not None:
            self._boundary.succeed()
            self._boundary = None
        return lost

    # --- from change to change ---

    def _begin_soon(self) -> None:
        """Begin after all of this moment, so that requests of one moment are read at once."""
        self._moving, self._number = True, 0
        self._call_in(0.0, self._begin)

    def _begin(self) -> None:
        self._number = 0
        if self._paused or not (self._ends or self._waiting):
            self._moving = False
            return
        reading_s = self._read_again() + self._take_in()
        alone = sum(map(self.costs.pass_s, self._models.values()))
        self._reading_s, self._pass_s = reading_s * self.slowdown, alone * self.slowdown
        self._since = self.env.now
        self._wait(self._ends[0][0] - self._passes)

    def _take_in(self) -> float:
        """Rows that wait stand in the batch; the seconds that reading them takes."""
        tokens = 0
        while self._waiting and len(self._ends) < self.costs.max_rows:
            row = self._waiting.popleft()
            row.begun = self._passes
            heapq.heappush(self._ends, (self._passes + row.tokens, next(self._order), row))
            self._models[row.model] += 1
            if row.last:
                self._closing[self._passes + row.tokens] += 1
            tokens += row.unread
        self.counts.prompt_tokens += tokens
        return tokens * self.costs.prompt_token_s

    def _read_again(self) -> float:
        if not self._reread:
            return 0.0
        self._reread = False
        tokens = sum(row.context + self._passes - row.begun for _, _, row in self._ends)
        self.counts.prompt_tokens += tokens
        return tokens * self.costs.prompt_token_s

    def _wait(self, number: int) -> None:
        self._number = number
        self._version += 1
        closing_s = self._closing[self._passes + number] * self.costs.episode_s * self.slowdown
        ends = self._since + self._reading_s + number * self._pass_s + closing_s
        self._call_in(max(0.0, ends - self.env.now), self._end)

    def _cut(self) -> None:
        """End the part under way with the pass under way."""
        gone = self.env.now - self._since - self._reading_s
        done = math.ceil(gone / self._pass_s - NEARLY) if self._pass_s > 0 else self._number
        done = max(1, done)
        if done < self._number:
            self._wait(done)

    def _end(self) -> None:
        self._account(self._number)
        self._passes += self._number
        self._number = 0
        self.counts.episodes += self._closing.pop(self._passes, 0)
        while self._ends and self._ends[0][0] <= self._passes:
            row = heapq.heappop(self._ends)[2]
            self._models[row.model] -= 1
            if not self._models[row.model]:
                del self._models[row.model]
            self.load -= 1
            row.done.succeed()
        if self._boundary is not None:
            self._boundary.succeed()
            self._boundary = None
        self._begin_soon()

    def _account(self, number: int) -> None:
        self.counts.passes += number * len(self._models)
        self.counts.rows += number * len(self._ends)
        if self._number:
            self.busy_s += self.env.now - self._since

    def _call_in(self, seconds: float, what: Any) -> None:
        version = self._version

        def call(_: simpy.Event) -> None:
            if version == self._version:
                what()

        timeout = self.env.timeout(seconds)
        assert timeout.callbacks is not None
        timeout.callbacks.append(call)
