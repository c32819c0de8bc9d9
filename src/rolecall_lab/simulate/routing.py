"""Says which simulated engine a request goes to, as `cluster/routing.py` says of real ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Any

import simpy

from rolecall.cluster.routing import AHEAD
from rolecall_lab.simulate.engine import Row, SimulatedEngine
from rolecall_lab.simulate.workload import SimulatedTurn


class Router:
    """An episode stays with its engine; a group's attempts go together while they are not late."""

    def __init__(self, env: simpy.Environment, engines: list[SimulatedEngine]) -> None:
        self.env, self.engines = env, engines
        self._homes: dict[Hashable, SimulatedEngine] = {}
        self._stranded: deque[tuple[Row, Hashable, Hashable]] = deque()  # nobody serves
        self._asked: dict[Row, tuple[Hashable, Hashable]] = {}

    def sample(
        self,
        turn: SimulatedTurn,
        *,
        place: int,
        group: Hashable,
        attempt: Hashable,
        last: bool = False,
    ) -> simpy.Event:
        """The event of its end; `place`: of the turn among those of its episode, `last` of them."""
        done = self.env.event()
        row = Row(max(1, turn.tokens), turn.context, 0, turn.model, done, last)
        engine = self._chosen(group, attempt)
        row.unread = turn.own
        if engine is not None:
            beginning = (group, turn.model, place)
            if beginning not in engine.known:
                engine.known.add(beginning)
                row.unread += turn.shared
        self._give(row, engine, group, attempt)
        return done

    def home(self, attempt: Hashable) -> SimulatedEngine:
        """Return the engine that an episode was last with."""
        return self._homes[attempt]

    def forget(self, group: Hashable, attempts: list[Hashable]) -> None:
        """A step is over."""
        for key in (group, *attempts):
            self._homes.pop(key, None)

    def lost(self, engine: SimulatedEngine) -> None:
        """Its rows go to others, from their beginnings."""
        engine.serves = False
        self._move(engine.lose())

    def lost_all(self) -> None:
        """All rows begin again where they were, once the engines go on."""
        rows = [(engine, row) for engine in self.engines for row in engine.lose()]
        for engine, row in rows:
            row.unread = row.context
            engine.ask(row)

    def restore(self, engine: SimulatedEngine) -> None:
        engine.serves = True
        engine.resume(reread=False)
        while self._stranded:
            row, group, attempt = self._stranded.popleft()
            self._give(row, self._chosen(group, attempt), group, attempt)

    def _move(self, rows: list[Row]) -> None:
        for row in rows:
            group, attempt = self._asked[row]
            row.unread = row.context
            self._give(row, self._chosen(group, attempt), group, attempt)

    def _give(
        self, row: Row, engine: SimulatedEngine | None, group: Hashable, attempt: Hashable
    ) -> None:
        if engine is None:
            row.unread = row.context
            self._stranded.append((row, group, attempt))
            return
        if row not in self._asked:
            self._asked[row] = (group, attempt)
            callbacks: list[Any] | None = row.done.callbacks
            assert callbacks is not None
            callbacks.append(lambda _: self._asked.pop(row))
        engine.ask(row)

    def _chosen(self, group: Hashable, attempt: Hashable) -> SimulatedEngine | None:
        home = self._homes.get(attempt)
        if home is None or not home.serves:
            home = self._homes.get(group)
            if home is None or not home.serves or home.load > AHEAD:
                serving = [engine for engine in self.engines if engine.serves]
                if not serving:
                    return None
                idlest = min(serving, key=_load)
                if home is None or not home.serves or home.load > idlest.load + AHEAD:
                    home = idlest
            self._homes[group] = home
        self._homes[attempt] = home
        return home


def _load(engine: SimulatedEngine) -> int:
    return engine.load
