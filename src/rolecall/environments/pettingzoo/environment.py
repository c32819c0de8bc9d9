"""Lets agents play a turn-based (AEC) game of PettingZoo; its tasks are seeds.

It is refereed as the package's own games are: one action in square brackets, one warning.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rolecall.config import registry
from rolecall.core.interfaces.environment import World
from rolecall.core.json_types import Options
from rolecall.core.types import Episode, Task
from rolecall.environments.games.environment import GameWorld
from rolecall.environments.gymnasium.actions import Actions, Show, choose_display, describe_actions
from rolecall.environments.gymnasium.tasks import Seeds

if TYPE_CHECKING:
    from pettingzoo import AECEnv


DEFAULT_RULES = "Play the game. Write one action in brackets."


class PettingZooEnvironment:
    """A game with Discrete actions; the agents of the team take the seats in their order.

    Each agent's score is the sum of its rewards.
    """

    def __init__(
        self,
        make: str,
        options: Options | None = None,
        rules: str = DEFAULT_RULES,
        actions: list[str] | None = None,
        show: str | None = None,
        illegal_reward: float = -1.0,
        max_moves: int = 200,
        test_size: int = 200,
    ) -> None:
        """make: import path of what makes the game (`pettingzoo.classic.tictactoe_v3:env`).
        options: keyword arguments of its constructor.
        rules: text that explains the world to agents.
        actions: names of the actions; by default their numbers.
        show: import path of a function that makes text of an observation; by default str.
        illegal_reward: all that an agent gets whose second illegal action in a row ends the game.
        max_moves: moves of all agents together after which the game ends.
        test_size: tasks of the test split.

        Raises ValueError for a game whose agents have not all the same Discrete actions.
        """
        self.make = registry.import_object(make, key="environment.make")
        self.options, self.rules, self.test_size = options or {}, rules, test_size
        self.show = choose_display(show, key="environment.show")
        self.illegal_reward, self.max_moves = illegal_reward, max_moves
        try:
            probe = self.make(**self.options)
        except TypeError as error:
            raise ValueError(f"{make} cannot be made with options {options}: {error}") from error
        try:
            action_sets = [
                describe_actions(probe.action_space(a), actions) for a in probe.possible_agents
            ]
        finally:
            probe.close()
        if not action_sets[0].names or any(
            one.names != action_sets[0].names for one in action_sets
        ):
            raise ValueError(f"the agents of {make} have not all the same Discrete actions")
        self.actions = action_sets[0]

    def tasks(self, split: str) -> Sequence[Task]:
        return Seeds(split, prompt=self.rules, test_size=self.test_size)

    def open(self, task: Task, *, seed: int) -> World:
        env = self.make(**self.options)
        env.reset(seed=task.info["seed"])
        return PettingZooWorld(
            AecGame(
                env,
                actions=self.actions,
                show=self.show,
                rules=self.rules,
                illegal_reward=self.illegal_reward,
                max_moves=self.max_moves,
            )
        )


class PettingZooWorld(GameWorld):
    """The referee. It counts as `games_cut` those that took too long."""

    def __init__(self, game: AecGame) -> None:
        super().__init__(game)
        self.aec = game

    async def score(self, episode: Episode) -> dict[str, float]:
        if self.aec.moves_left == 0 and self.aec.env.agents:
            episode.count("games_cut")
        return await super().score(episode)

    async def close(self) -> None:
        self.aec.env.close()


class AecGame:
    """A game under way, as `environments.games` referees it."""

    def __init__(
        self,
        env: AECEnv,  # pettingzoo.AECEnv, reset
        *,
        actions: Actions,
        show: Show,
        rules: str,
        illegal_reward: float,
        max_moves: int,
    ) -> None:
        self.env, self.actions, self.show, self.rules = env, actions, show, rules
        self.illegal_reward, self.moves_left = illegal_reward, max_moves
        self.players: list[str] = list(env.possible_agents)
        self.seats = len(self.players)
        self.won = dict.fromkeys(self.players, 0.0)
        self.gave_up: int | None = None

    @property
    def to_move(self) -> int | None:
        if self.gave_up is not None or not self.env.agents or self.moves_left == 0:
            return None
        return self.players.index(self.env.agent_selection)

    def view(self, seat: int) -> str:
        return f"You are player {seat + 1}.\n{self.show(self.env.observe(self.players[seat]))}"

    def legal(self) -> list[str]:
        """Return the legal actions: all, or those that the game's action mask leaves."""
        env = self.env
        observed = env.observe(env.agent_selection)
        mask = observed.get("action_mask") if isinstance(observed, dict) else None
        mask = env.infos[env.agent_selection].get("action_mask") if mask is None else mask
        names = self.actions.names
        return [name for n, name in enumerate(names) if mask is None or mask[n]]

    def play(self, action: str) -> None:
        self.env.step(self.actions.read(f"[{action}]"))
        self.moves_left -= 1
        for player, reward in self.env.rewards.items():
            self.won[player] += float(reward)
        while self.env.agents and self._is_out(self.env.agent_selection):
            self.env.step(None)  # how PettingZoo takes an agent that is out off the table

    def payoffs(self) -> list[float]:
        return [
            self.illegal_reward if seat == self.gave_up else self.won[player]
            for seat, player in enumerate(self.players)
        ]

    def forfeit(self, seat: int) -> None:
        self.gave_up = seat

    def _is_out(self, player: str) -> bool:
        return bool(self.env.terminations[player] or self.env.truncations[player])
