"""A turn-based game in; tasks that deal it, and worlds that referee it, out.

An action is written in square brackets, exactly one legal one a message. After one warning an
illegal action forfeits the game.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from random import Random
from typing import Protocol

from rolecall import registry
from rolecall.core import Episode, Task
from rolecall.environments.base import Observation, World
from rolecall.seeds import seed_of

BRACKETS = re.compile(r"\[([^\[\]]+)\]")
GAMES = {"kuhn": "rolecall.environments.kuhn:Kuhn"}


class Game(Protocol):
    """One game under way. Made with `Game(random)`, which deals it."""

    rules: str  # what every seat is told
    seats: int

    @property
    def to_move(self) -> int | None:
        """A seat; None when the game is over."""
        ...

    def view(self, seat: int) -> str:
        """What a seat knows: nothing that only others may see."""
        ...

    def legal(self) -> list[str]:
        """Actions of the seat to move."""
        ...

    def play(self, action: str) -> None: ...

    def payoffs(self) -> list[float]:
        """What each seat won, once the game is over: they sum to 0."""
        ...

    def forfeit(self, seat: int) -> None:
        """The seat gives up; the game is over."""
        ...


class GameEnvironment:
    """A built-in game (`kuhn`) or `path/to/file.py:Game`; each task is a deal of its own."""

    def __init__(self, game: str = "kuhn", train_size: int = 10_000, test_size: int = 200) -> None:
        self.make = registry.imported(GAMES.get(game, game), key="environment.game")
        self.sizes = {"train": train_size, "test": test_size}

    def tasks(self, split: str) -> Sequence[Task]:
        rules = self.make(Random(0)).rules
        return [
            Task(f"{split}-{deal}", rules, None, {"source": split, "deal": seed_of(split, deal)})
            for deal in range(self.sizes[split])
        ]

    def open(self, task: Task, *, seed: int) -> World:
        return GameWorld(self.make(Random(task.info["deal"])))


class GameWorld(World):
    """The referee. `seated` says who plays; then `step` takes the action of who is to move."""

    def __init__(self, game: Game) -> None:
        self.game = game
        self.names: list[str] = []
        self.warned = False

    def seated(self, names: list[str]) -> None:
        """Agents in the order of their seats."""
        if len(names) != self.game.seats:
            raise ValueError(f"the game has {self.game.seats} seats, {len(names)} agents play")
        self.names = names

    def player(self) -> str | None:
        """Who is to move; None when the game is over."""
        return None if self.game.to_move is None else self.names[self.game.to_move]

    def view(self, agent: str) -> Observation:
        """What the agent may know, and what it may do now."""
        told = f"{self.game.view(self.names.index(agent))}\n{self._choices()}"
        return Observation(told, key=f"{agent} {told}")

    async def step(self, agent: str, action: str) -> Observation:
        if agent != self.player():
            raise ValueError(f"it is not the turn of {agent!r}")
        named = {text.strip().lower() for text in BRACKETS.findall(action)}
        if len(named) == 1 and named <= {*self.game.legal()}:
            self.warned = False
            self.game.play(named.pop())
        elif not self.warned:
            self.warned = True
            return Observation(f"That was not one legal action.\n{self._choices()}")
        else:
            self.game.forfeit(self.names.index(agent))
        return Observation("", done=self.game.to_move is None)

    def _choices(self) -> str:
        return "You may: " + ", ".join(f"[{action}]" for action in self.game.legal())

    async def score(self, episode: Episode) -> dict[str, float]:
        return dict(zip(self.names, self.game.payoffs(), strict=True))
