"""Offers a game of this package as an AEC environment of PettingZoo.

An observation is the text of the seat's view as bytes, with a mask of the legal actions; `text_of`
reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rolecall.core.json_types import JsonObject, Options
from rolecall.core.optional import needs
from rolecall.core.renamed import answer_old_names
from rolecall.environments.games.environment import Game
from rolecall.environments.games.kuhn import MOVES, Kuhn

with needs("pettingzoo", extra="gym"):
    from gymnasium import spaces
    from pettingzoo import AECEnv

Seen = dict[str, NDArray[Any]]  # observation: uint8 [max_bytes]; action_mask: int8 [actions]


class AsPettingZoo(AECEnv[str, Seen, int]):
    """Players `player_0`, `player_1`, ...; who plays an illegal action gives up."""

    def __init__(
        self,
        make: Callable[[Random], Game],
        *,
        name: str,
        actions: Sequence[str],  # all that may ever be legal
        max_bytes: int = 1024,
    ) -> None:
        super().__init__()
        self.metadata = {"name": name, "render_modes": []}
        self.render_mode = None
        self.make, self.actions, self.max_bytes = make, list(actions), max_bytes
        self.random = Random()
        self.game = make(self.random)
        self.possible_agents = [f"player_{seat}" for seat in range(self.game.seats)]
        text = spaces.Box(0, 255, (max_bytes,), np.uint8)
        mask = spaces.Box(0, 1, (len(self.actions),), np.int8)
        seen = spaces.Dict({"observation": text, "action_mask": mask})
        self.observation_spaces = dict.fromkeys(self.possible_agents, seen)
        self.action_spaces = {
            player: spaces.Discrete(len(self.actions)) for player in self.possible_agents
        }

    def observation_space(self, agent: str) -> spaces.Space[Any]:
        return self.observation_spaces[agent]

    def action_space(self, agent: str) -> spaces.Space[Any]:
        return self.action_spaces[agent]

    def reset(self, seed: int | None = None, options: Options | None = None) -> None:
        """Begin a new deal."""
        if seed is not None:
            self.random = Random(seed)
        self.game = self.make(self.random)
        self.agents = list(self.possible_agents)
        self.rewards = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = dict.fromkeys(self.agents, 0.0)
        self.terminations = dict.fromkeys(self.agents, False)
        self.truncations = dict.fromkeys(self.agents, False)
        self.infos: dict[str, JsonObject] = {player: {} for player in self.agents}
        self._select()

    def observe(self, agent: str) -> Seen:
        seat = self.possible_agents.index(agent)
        held = f"{self.game.rules}\n{self.game.view(seat)}".encode()
        if len(held) > self.max_bytes:
            raise ValueError(f"a view takes {len(held)} bytes, and max_bytes is {self.max_bytes}")
        text = np.zeros(self.max_bytes, np.uint8)
        text[: len(held)] = np.frombuffer(held, np.uint8)
        legal = self.game.legal() if self.game.to_move == seat else []
        mask = np.array([action in legal for action in self.actions], np.int8)
        return {"observation": text, "action_mask": mask}

    def step(self, action: int | None) -> None:
        player = self.agent_selection
        if self.terminations[player]:
            self._was_dead_step(action)
            return
        self._cumulative_rewards[player] = 0.0
        self._clear_rewards()
        seat = self.possible_agents.index(player)
        assert action is not None, "a player that is not out has an action"
        if self.actions[action] in self.game.legal():
            self.game.play(self.actions[action])
        else:
            self.game.forfeit(seat)
        if self.game.to_move is None:
            self.rewards = dict(zip(self.possible_agents, self.game.payoffs(), strict=True))
            self.terminations = dict.fromkeys(self.agents, True)
        self._select()
        self._accumulate_rewards()

    def _select(self) -> None:
        """Select the player to move; once the game is over one player after the other leaves."""
        self.agent_selection = self.possible_agents[self.game.to_move or 0]


def observation_text(seen: Seen) -> str:
    """Return the text of an observation: rules and what the seat may know."""
    return bytes(seen["observation"]).rstrip(b"\0").decode()


def kuhn() -> AsPettingZoo:
    """Kuhn poker."""
    actions = dict.fromkeys(action for _, legal in MOVES.values() for action in legal)
    return AsPettingZoo(Kuhn, name="kuhn_v0", actions=list(actions))


__getattr__ = answer_old_names(
    __name__,
    {"text_of": "observation_text"},
)
