"""VDN (1706.05296) and QMIX (1803.11485) as published: values are learned, and the best is played.

Each agent samples candidates in every call; q ranks them, the best one is played, or any with
probability epsilon. The language models are frozen, or imitate what q calls best. The use for
utterances is our own. Degenerate: one candidate is nothing to choose from and a config error.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from statistics import fmean
from typing import ClassVar, Literal, Protocol

from pydantic import Field, PrivateAttr

from rolecall.algorithms.base import Algorithm
from rolecall.algorithms.losses import ImitationLoss
from rolecall.core.credit import Best, LeftOut
from rolecall.core.interfaces.critic import Chooser, Critic
from rolecall.core.json_types import State
from rolecall.core.types import Episode, Turn, group_by
from rolecall.critics.inputs import CriticInputs
from rolecall.runtime.turn_order import joint_steps


class Replay(Protocol):
    """Defines what both algorithms ask of their critic."""

    async def predict_values(self, turns: list[Turn]) -> list[float]: ...
    def remember(self, episodes: Sequence[tuple[Episode, list[float]]]) -> None: ...
    def learn(
        self, *, gamma: float, batch: int, updates: int, copy_every: int
    ) -> dict[str, float]: ...


class VdnValue(ImitationLoss, Algorithm):
    """Double Q-learning of a sum of utilities, from a replay of episodes."""

    min_group: ClassVar[int] = 1
    critic: ClassVar[str | None] = "mixer"
    mixer: ClassVar[Literal["vdn", "qmix"]] = "vdn"
    compares_candidates: ClassVar[bool] = True

    candidates: int = Field(4, ge=2, le=1000)
    """What an agent samples in every call, also in an evaluation."""
    gamma: float = Field(0.99, gt=0, le=1)
    """Discount from one joint step to the next."""
    epsilon: float = Field(1.0, ge=0, le=1)
    """How often any candidate is played instead of the best, as the run begins."""
    epsilon_end: float = Field(0.05, ge=0, le=1)
    """The same after `epsilon_steps`."""
    epsilon_steps: int = Field(50, ge=1, le=1_000_000_000)
    """Steps over which it falls, evenly."""
    buffer: int = Field(5000, ge=1, le=10_000_000)
    """Episodes that are remembered; the oldest give way."""
    batch: int = Field(32, ge=1, le=100_000)
    """Episodes of the replay in each optimizer step."""
    updates: int = Field(8, ge=1, le=100_000)
    """Optimizer steps of the critic in each step of the run."""
    copy_every: int = Field(200, ge=1, le=10_000_000)
    """Episodes after which the copy, towards which it learns, is made anew."""
    distil: bool = False
    """Train the agents to say what q calls the best of their candidates; without it their weights
    stay as they are."""
    _done: int = PrivateAttr(0)  # steps

    @property
    def moves_policies(self) -> bool:
        return self.distil

    @property
    def epsilon_now(self) -> float:
        """Return the current epsilon; from 1 to .05 over 50 steps it is .525 after 25."""
        share = min(1.0, self._done / self.epsilon_steps)
        return self.epsilon + share * (self.epsilon_end - self.epsilon)

    def best(self, values: list[float], *, explores: bool, random: Random) -> int:
        """Return the number of the candidate to play; of equal ones the first."""
        if explores and random.random() < self.epsilon_now:
            return random.randrange(len(values))
        return values.index(max(values))

    def credit(self, episodes: list[Episode]) -> None:
        """Give 1 to the tokens of each call's best candidate with `distil`, else nothing."""
        credited = self.credited_turns(episodes)
        if not self.distil:
            for _, turn in credited:
                turn.give_credit(LeftOut("the agents' weights stay as they are"))
            return
        for siblings in group_by([turn for _, turn in credited], "episode", "call_path"):
            values = [turn.training.preference for turn in siblings]
            assert None not in values, "no critic has valued these candidates"
            for number, turn in enumerate(siblings):
                turn.give_credit(Best(number, tuple(values)))  # type: ignore[arg-type]

    def step_rewards(self, episode: Episode) -> list[float]:
        """Return each joint step's reward; the outcome, a mean over agents, comes with the last."""
        rewards = [sum(turn.score for turn in step) for step in joint_steps(episode)]
        if rewards:
            agents = sorted({turn.agent for turn in episode.turns})
            rewards[-1] += fmean(map(episode.outcome, agents))
        return rewards

    def make_critic(self, parts: CriticInputs) -> Critic:
        from rolecall.critics.replay import ReplayCritic

        return ReplayCritic.from_inputs(
            parts,
            mixer=self.mixer,
            reads=self.critic_reads,
            total_updates=parts.steps * self.updates,
            buffer=self.buffer,
        )

    def chooser(self, critic: Replay) -> Chooser:
        return EpsilonGreedy(self, critic)

    def fit(self, episodes: list[Episode], critic: Replay) -> dict[str, float]:
        critic.remember([(episode, self.step_rewards(episode)) for episode in episodes])
        return critic.learn(
            gamma=self.gamma, batch=self.batch, updates=self.updates, copy_every=self.copy_every
        )

    def after_step(self, step: int) -> None:
        self._done = step

    def metrics(self) -> dict[str, float]:
        return {"epsilon": self.epsilon_now}

    def state_dict(self) -> State:
        return {"done": self._done}

    def load_state_dict(self, state: State) -> None:
        self._done = state["done"]


class EpsilonGreedy:
    """Plays the candidate of the largest q, or any."""

    def __init__(self, algorithm: VdnValue, critic: Replay) -> None:
        self.algorithm, self.critic = algorithm, critic
        self.candidates = algorithm.candidates

    async def __call__(self, turns: list[Turn], *, explores: bool, random: Random) -> Turn:
        values = await self.critic.predict_values(turns)
        return turns[self.algorithm.best(values, explores=explores, random=random)]


class QmixValue(VdnValue):
    """Works as VDN with a mix that is monotone in every utility and depends on the conversation."""

    mixer: ClassVar[Literal["vdn", "qmix"]] = "qmix"
    critic_reads: ClassVar[bool] = True
