"""Lets agents play a game of textarena against one another; its tasks are seeds."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import PositiveFloat, PositiveInt

from rolecall.core.errors import InfrastructureError, RunEndingError
from rolecall.core.interfaces.environment import Observation, World
from rolecall.core.json_types import Options
from rolecall.core.types import Episode, Task
from rolecall.environments.gymnasium.tasks import Seeds
from rolecall.environments.processes.worlds import WorldError, WorldProcess, WorldProcesses

DEFAULT_RULES = "Play the game that is described below."
REFUSED = ("AssertionError", "ValueError")  # errors of games that are not for so many players


class TextArenaEnvironment:
    """A game of textarena; the agents of the role `player` take the seats in their order.

    Each agent's score is its own reward; that of a game for one player is the team's.
    """

    lone_workflow = "multi_turn"

    def __init__(
        self,
        make: str,
        options: Options | None = None,
        python: str = "",
        rules: str = DEFAULT_RULES,
        max_moves: PositiveInt = 200,
        step_timeout_s: PositiveFloat = 60.0,
        test_size: int = 200,
    ) -> None:
        """make: an id that textarena has registered (`TicTacToe-v0`).
        options: keyword arguments of its constructor.
        python: the Python that has textarena; by default this one.
        rules: text that stands before what the game says.
        max_moves: moves of all agents together after which the game ends and pays nothing.
        step_timeout_s: most seconds of one move; a game that takes longer is an error.
        test_size: tasks of the test split.
        """
        self.rules, self.max_moves, self.test_size = rules, max_moves, test_size
        self.processes = WorldProcesses(
            "textarena", make, options or {}, python=python, step_timeout_s=step_timeout_s
        )

    def tasks(self, split: str) -> Sequence[Task]:
        return Seeds(split, prompt=self.rules, test_size=self.test_size)

    def open(self, task: Task, *, seed: int) -> World:
        return TextArenaWorld(self.processes, task.info["seed"], max_moves=self.max_moves)

    async def check(self) -> None:
        """Make one game; raises InfrastructureError where that fails."""
        await self.processes.check()

    async def close(self) -> None:
        await self.processes.close()


class TextArenaWorld(World):
    """One game, as `self_play` plays it. It counts `illegal_moves`, and `games_cut` as too long."""

    def __init__(self, processes: WorldProcesses, seed: int, *, max_moves: int) -> None:
        self.processes, self.seed, self.moves_left = processes, seed, max_moves
        self.process: WorldProcess | None = None
        self.names: list[str] = []
        self.to_move = 0  # a seat
        self.text = ""  # all that the seat to move was shown
        self.is_over = False
        self.num_illegal = 0

    async def seat_agents(self, names: list[str]) -> None:
        """Begin the game; raises RunEndingError if it is not for so many agents."""
        self.names = names
        self.process = await self.processes.open(self.seed)
        try:
            seen = await self.process.call("reset", seed=self.seed, num_players=len(names))
        except WorldError as error:
            if error.type not in REFUSED:
                raise
            raise RunEndingError(
                f"make: {self.processes.id} cannot be played by {len(names)} agents of the role "
                f"player; change their number ({error})"
            ) from error
        self.to_move, self.text = seen["player"], seen["view"]

    def player(self) -> str | None:
        """Return the agent to move; None when the game is over."""
        return None if self.is_over or not self.moves_left else self.names[self.to_move]

    def seat(self, agent: str) -> int:
        """Return the place of an agent in the game, from 0."""
        return self.names.index(agent)

    def view(self, agent: str) -> Observation:
        """Return all that the agent to move was shown since the game began."""
        if agent != self.player():
            raise ValueError(f"it is not the turn of {agent!r}")
        return Observation(self.text, key=f"{agent} {self.text}")

    async def step(self, agent: str, action: str) -> Observation:
        """Play a move. What is wrong with an illegal one stands in the next view."""
        if agent != self.player():
            raise ValueError(f"it is not the turn of {agent!r}")
        assert self.process is not None, "opened by seat_agents"
        seen = await self.process.call("step", action=action)
        self.moves_left -= 1
        self.num_illegal += seen["is_illegal"]
        self.is_over = seen["is_done"]
        if not self.is_over:
            self.to_move, self.text = seen["player"], seen["view"]
        return Observation("", done=self.player() is None)

    async def score(self, episode: Episode) -> dict[str, float]:
        episode.metrics["count/illegal_moves"] = float(self.num_illegal)
        rewards = [0.0] * len(self.names)
        if self.is_over:
            assert self.process is not None, "opened by seat_agents"
            rewards = await self.process.call("close")
        elif self.moves_left:
            raise ValueError("the game is not over")
        else:
            episode.count("games_cut")
        if rewards is None or len(rewards) != len(self.names):
            raise InfrastructureError(f"{self.processes.id}: the game is over and paid {rewards}")
        if len(self.names) == 1:
            return {"team": rewards[0]}
        return dict(zip(self.names, rewards, strict=True))

    async def close(self) -> None:
        if self.process is not None:
            self.process.close()
