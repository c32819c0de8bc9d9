"""Counterfactual baseline (after COMA, 1705.08926): what would the team have earned without a turn?

Episodes are replayed from just before the turn with something else in its place and the same
seeds; no critic. Degenerate: the same text again gives exactly 0; a replay that fails leaves the
turn to RLOO, as turns that were not sampled for a replay are.
"""

from __future__ import annotations

import asyncio
from typing import Literal

import numpy as np
from pydantic import Field, PrivateAttr, model_validator

from rolecall.algorithms.base import Algorithm, Replay
from rolecall.algorithms.groups import compare, leave_one_out_mean
from rolecall.algorithms.policy_loss import ClippedLoss
from rolecall.algorithms.whitening import divide_turns
from rolecall.core.credit import Replayed
from rolecall.core.seeding import derive_seed
from rolecall.core.types import Episode, Group, Swap, Turn


class Counterfactual(ClippedLoss, Algorithm):
    """A = outcome - mean outcome of the replays, divided by the agent's spread."""

    baseline: Literal["same", "text"] = "same"
    """What stands in the turn's place: a new sample of the same policy, or `text`."""
    text: str = ""
    """The text of `baseline: text`."""
    replays: int = Field(1, ge=1, le=1000)
    """Replays of each turn that is probed."""
    fraction: float = Field(0.25, gt=0, le=1)
    """Share of the turns that are probed."""
    scale: bool = True
    """Divide by the spread of the agent's advantages."""
    _variances: list[tuple[float, float]] = PrivateAttr(default_factory=list)
    _gains: dict[str, list[float]] = PrivateAttr(default_factory=dict)
    _failed: int = PrivateAttr(default=0)

    @model_validator(mode="after")
    def _check_text(self) -> Counterfactual:
        if "text" in self.model_fields_set and self.baseline != "text":
            raise ValueError("text has no effect unless baseline is text; remove it")
        return self

    async def prepare(self, group: Group, replay: Replay) -> None:
        """Replay each probed turn and note what the team earned without it; all at once."""
        async with asyncio.TaskGroup() as together:
            for episode in group:
                for turn in episode.turns:
                    sampled = turn.trained and turn.chosen and turn.tokens is not None
                    if sampled and self._drawn(turn):
                        together.create_task(self._probe(episode, turn, replay))

    async def _probe(self, episode: Episode, turn: Turn, replay: Replay) -> None:
        text = self.text if self.baseline == "text" else None
        async with asyncio.TaskGroup() as together:
            played = [
                together.create_task(replay(episode, Swap(turn.call_path, text, draw)))
                for draw in range(self.replays)
            ]
        others = [task.result() for task in played]
        returns = [agent_return(other, turn.agent) for other in others if other.error is None]
        failed = [other.error for other in others if other.error is not None]
        if failed:
            turn.training.replay_error = failed[-1]
        if returns:
            turn.training.replayed = float(np.mean(returns))

    def _drawn(self, turn: Turn) -> bool:
        return derive_seed(turn.id, "counterfactual") % 10_000 < self.fraction * 10_000

    def credit(self, episodes: list[Episode]) -> None:
        """Outcome -1, replays 2: A = -3. Turns without a replay are compared as in RLOO."""
        credited = self.credited_turns(episodes)
        compare(
            credited, mean="agent", std="none", count="episode_agent", own=self.own_reward,
            several=True, baseline=leave_one_out_mean,
        )  # fmt: skip
        self._variances, self._gains, self._failed = [], {}, 0
        for agent in sorted({turn.agent for _, turn in credited}):
            turns = [(episode, turn) for episode, turn in credited if turn.agent == agent]
            shared = [float(turn.advantages[0]) for _, turn in turns]  # type: ignore[index]
            for episode, turn in turns:
                self._failed += bool(turn.training.replay_error)
                if turn.training.replayed is not None:
                    earned = agent_return(episode, agent)
                    self._gains.setdefault(agent, []).append(earned - turn.training.replayed)
                    # What the world or the workflow paid for this turn is in both returns.
                    paid = sum(turn.world_rewards.values()) + (turn.paid or 0.0)
                    own = self.own_reward(episode, turn) - paid
                    turn.reset_credit()
                    turn.give_credit(Replayed(earned, turn.training.replayed, own))
            advantages = [float(turn.advantages[0]) for _, turn in turns]  # type: ignore[index]
            self._variances.append((float(np.var(shared)), float(np.var(advantages))))
            if self.scale:
                divide_turns([turn for _, turn in turns], of=f"the turns of {agent}")

    def metrics(self) -> dict[str, float]:
        """Variances of the advantages without and with the replays, before scaling.

        With `baseline: text` also what the team gains by an agent's turns, as `gain/solver`.
        """
        if not self._variances:
            return {}
        shared, probed = np.mean(self._variances, axis=0)
        gains = self._gains if self.baseline == "text" else {}
        return {
            "variance_without_replays": float(shared),
            "variance_with_replays": float(probed),
            "failed_replays": float(self._failed),
            **{f"gain/{agent}": float(np.mean(values)) for agent, values in gains.items()},
        }


def agent_return(episode: Episode, agent: str) -> float:
    """Return what an agent's episode came to: its outcome, and what its played turns were paid.

    Own rewards of single actions, such as penalties, are not in it.
    """
    played = [turn for turn in episode.turns if turn.agent == agent and turn.chosen]
    paid = sum((turn.paid or 0.0) + sum(turn.world_rewards.values()) for turn in played)
    return episode.outcome(agent) + paid
