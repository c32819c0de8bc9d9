"""Trains one agent at a time, for some steps each, where an algorithm has that as an option."""

from __future__ import annotations

from pydantic import Field, PrivateAttr

from rolecall.algorithms.base import Algorithm
from rolecall.core.credit import LeftOut
from rolecall.core.json_types import State
from rolecall.core.types import Turn


class RoundRobin(Algorithm):
    """Agents in the order of their names; a resumed run goes on with whose turn it is.

    An agent that does not speak in its steps has them all the same, and nobody is trained.
    """

    round_robin: int | None = Field(None, ge=1, le=1_000_000)
    """Steps for which one agent alone is trained, before the next one; null: all are, always."""
    _done: int = PrivateAttr(0)  # steps

    def leave_out_others(self, turns: list[Turn]) -> None:
        """Take the credit from the turns of the agents whose turn it is not."""
        agents = self.trained_agents(turn.agent for turn in turns)
        if self.round_robin is None or not agents:
            return
        now = agents[self._done // self.round_robin % len(agents)]
        for turn in turns:
            if turn.agent != now:
                turn.give_credit(LeftOut(f"only {now} is trained in this step"))

    def after_step(self, step: int) -> None:
        self._done = step

    def state_dict(self) -> State:
        return {"done": self._done}

    def load_state_dict(self, state: State) -> None:
        self._done = state["done"]
