"""Deals and referees turn-based games.

An action is written in square brackets, exactly one legal one a message. After one warning an
illegal action forfeits the game.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import combinations
from random import Random
from typing import Protocol

from rolecall.config import registry
from rolecall.core.interfaces.environment import Observation, World
from rolecall.core.seeding import derive_seed
from rolecall.core.types import Episode, Task, group_by
from rolecall.environments.games.exploitability import (
    action_frequencies,
    cross_play,
    exploitability,
)

BRACKETS = re.compile(r"\[([^\[\]]+)\]")
GAMES = {
    "kuhn": "rolecall.environments.games.kuhn:Kuhn",
    "leduc": "rolecall.environments.games.leduc:Leduc",
}


class Game(Protocol):
    """One game under way. Made with `Game(random)`, which deals it."""

    rules: str  # what every seat is told
    seats: int

    @property
    def to_move(self) -> int | None:
        """A seat; None when the game is over."""
        ...

    def view(self, seat: int) -> str:
        """Return the view of a seat: nothing that only others may see."""
        ...

    def legal(self) -> list[str]:
        """Actions of the seat to move."""
        ...

    def play(self, action: str) -> None: ...

    def payoffs(self) -> list[float]:
        """Return the payoff of each seat, once the game is over: they sum to 0."""
        ...

    def forfeit(self, seat: int) -> None:
        """Give up a seat, which ends the game."""
        ...


class GameEnvironment:
    """A game for agents who move in turn; each task is a deal of its own.

    game: `kuhn`, `leduc`, or an import path of your own game.
    train_size: deals of the train split.
    test_size: deals of the test split.
    """

    def __init__(self, game: str = "kuhn", train_size: int = 10_000, test_size: int = 200) -> None:
        self.game = game
        self.make = registry.import_object(GAMES.get(game, game), key="environment.game")
        self.sizes = {"train": train_size, "test": test_size}

    def tasks(self, split: str) -> Sequence[Task]:
        rules = self.make(Random(0)).rules
        return [
            Task(
                f"{split}-{deal}",
                rules,
                None,
                {"source": self.game, "deal": derive_seed(split, deal)},
            )
            for deal in range(self.sizes[split])
        ]

    def open(self, task: Task, *, seed: int) -> World:
        return GameWorld(self.make(Random(task.info["deal"])))

    def deals(self) -> list[Game]:
        """Return every deal of a game for two once, where the game lists them; else nothing."""
        if self.make.seats != 2 or not hasattr(self.make, "deals"):
            return []
        deals: list[Game] = self.make.deals()
        return deals

    def measures(self, episodes: list[Episode]) -> dict[str, float]:
        """Return the exploitability of the play, where the game can list its `deals`; else
        nothing.

        `exploitability` is that of the team, each seat as it was played. Where several agents
        played every seat, each has one of its own, and `cross_play/ONE/OTHER` is what one wins a
        game of the other. All are estimates: few games make play look more exploitable than it is.
        """
        moves = [t for episode in episodes for t in episode.turns if "action" in t.info]
        deals, team = self.deals(), action_frequencies(moves)
        if not moves or not deals:
            return {}
        measures = {"exploitability": exploitability(deals, [team, team])}
        of_agents = {turns[0].agent: turns for turns in group_by(moves, "agent")}
        whole = {
            name: action_frequencies(turns)
            for name, turns in sorted(of_agents.items())
            if len({turn.seat for turn in turns}) == self.make.seats
        }
        if len(whole) > 1:
            for name, own in whole.items():
                measures[f"exploitability/{name}"] = exploitability(deals, [own, own])
            won = cross_play(deals, whole)
            for one, other in combinations(whole, 2):
                measures[f"cross_play/{one}/{other}"] = won[one, other]
        return measures


class GameWorld(World):
    """The referee. `seated` says who plays; then `step` takes the action of who is to move.

    It counts `illegal_moves`.
    """

    def __init__(self, game: Game) -> None:
        self.game = game
        self.names: list[str] = []
        self.warned = False
        self.num_illegal = 0

    async def seat_agents(self, names: list[str]) -> None:
        """Seat the agents; `names` are in the order of the seats."""
        if len(names) != self.game.seats:
            raise ValueError(f"the game has {self.game.seats} seats, {len(names)} agents play")
        self.names = names

    def player(self) -> str | None:
        """Return the player to move; None when the game is over."""
        return None if self.game.to_move is None else self.names[self.game.to_move]

    def seat(self, agent: str) -> int:
        """Return the place of an agent in the game, from 0."""
        return self.names.index(agent)

    def view(self, agent: str) -> Observation:
        """Return what the agent may know and do now."""
        text = f"{self.game.view(self.seat(agent))}\n{self._choices()}"
        return Observation(text, key=f"{agent} {text}")

    async def step(self, agent: str, action: str) -> Observation:
        """Play an action. After a legal one `info` holds what its seat saw and did."""
        if agent != self.player():
            raise ValueError(f"it is not the turn of {agent!r}")
        seat = self.seat(agent)
        named = {text.strip().lower() for text in BRACKETS.findall(action)}
        if len(named) == 1 and named <= {*self.game.legal()}:
            self.warned = False
            action = named.pop()
            noted = {"view": self.game.view(seat), "action": action}
            self.game.play(action)
            return Observation("", done=self.game.to_move is None, info=noted)
        self.num_illegal += 1
        if not self.warned:
            self.warned = True
            warning = f"That was not one legal action.\n{self._choices()}"
            return Observation(warning)
        self.game.forfeit(seat)
        return Observation("", done=self.game.to_move is None)

    def _choices(self) -> str:
        return "You may: " + ", ".join(f"[{action}]" for action in self.game.legal())

    async def score(self, episode: Episode) -> dict[str, float]:
        episode.metrics["count/illegal_moves"] = float(self.num_illegal)
        return dict(zip(self.names, self.game.payoffs(), strict=True))
