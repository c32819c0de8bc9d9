"""The base class of algorithms: how turns are credited, and what the trainer asks.

An algorithm is whom a turn is compared with, plus a loss. A new one names its loss and this class
as bases, `class Mine(ClippedLoss, Algorithm)`, and writes `credit`; its fields are its
hyperparameters and its YAML keys.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, ClassVar, Literal

from pydantic import PrivateAttr, model_validator

from rolecall.algorithms.groups import CreditedTurn
from rolecall.algorithms.losses import BaseLoss
from rolecall.algorithms.policy_loss import ClippedLoss
from rolecall.core.credit import LeftOut
from rolecall.core.interfaces.critic import Chooser, Critic, Discriminator, Judge
from rolecall.core.types import Episode, Group, Pair, Swap, Turn
from rolecall.critics.inputs import CriticInputs

Rows = Literal["preferences", "demonstrations"]  # of a data file
# (an episode, what to change) -> the episode that the same seeds then give
Replay = Callable[[Episode, Swap | None], Coroutine[Any, Any, Episode]]


class Algorithm(BaseLoss, ABC):
    """Whom a turn is compared with, and the hooks; the loss comes of another base class."""

    min_group: ClassVar[int] = 2
    """Fewest episodes of a task that can be compared."""
    critic: ClassVar[str | None] = None
    """Name of the critic it needs, under which `critics` of a config describes it: `agent` is a
    value head on each policy, which the learner makes; any other one comes of `make_critic`."""
    critic_reads: ClassVar[bool] = False
    """Whether the critic has a model of its own, `critics.NAME.base`."""
    discriminator: ClassVar[str | None] = None
    """Name of another critic, which pays turns before credit is given. It has a model of its own,
    and comes of `make_discriminator`."""
    compares_candidates: ClassVar[bool] = False
    """Whether it trains on candidates that were not played."""
    needs_candidates: ClassVar[bool] = False
    """Without them it has nothing to compare."""
    filters_groups: ClassVar[bool] = False
    """Its `keep_group` may filter groups out, which are then replaced by new tasks."""
    takes_data: ClassVar[Rows | None] = None
    """The rows of a file on which it can train instead of turns that its policies sampled."""
    answers_data: ClassVar[bool] = False
    """Its policies answer the prompts of the file too: it compares both, and needs the file."""

    _team: frozenset[str] = PrivateAttr(frozenset())

    @model_validator(mode="before")
    @classmethod
    def _check_loss(cls, options: Any) -> Any:
        if not cls._losses():
            bases = ", ".join(base.__name__ for base in cls.__bases__)
            raise ValueError(
                f"{cls.__name__} has no loss; write `class {cls.__name__}(ClippedLoss, {bases})`, "
                "with `from rolecall import ClippedLoss`"
            )
        for name in options:
            if name in ClippedLoss.model_fields.keys() - cls.model_fields.keys():
                raise ValueError(
                    f"{name} has no effect: {cls.__name__}'s loss does not have it; remove it"
                )
        return options

    @classmethod
    def _losses(cls) -> list[type[BaseLoss]]:
        kinds = [kind for kind in cls.__mro__ if issubclass(kind, BaseLoss)]
        return [kind for kind in kinds if kind is not BaseLoss and not issubclass(kind, Algorithm)]

    @classmethod
    def loss_fields(cls) -> set[str]:
        """Return the options that its loss declares; all others are of credit.

        Agents that differ in these alone are credited together, by one object, unless credit reads
        them, too. Agents that share a policy may differ in all others.
        """
        declared = {name for loss in cls._losses() for name in loss.model_fields}
        return declared & cls.model_fields.keys()

    # --- what the trainer asks ---

    def join_team(self, agents: Iterable[str]) -> None:
        """Take note of all agents that the run trains, also those with another algorithm."""
        self._team = frozenset(agents)

    def trained_agents(self, speakers: Iterable[str]) -> list[str]:
        """Return all agents that the run trains, sorted.

        Outside of a run no team is known, and these are the agents that have spoken.
        """
        return sorted(self._team or set(speakers))

    def shares_credit(self, other: Algorithm) -> bool:
        """Return whether both assign the same credit, so that one object can do it for both."""
        kind = type(self)
        names = kind.model_fields.keys() - (kind.loss_fields() - self.read_by_credit)
        return type(other) is kind and all(getattr(self, n) == getattr(other, n) for n in names)

    @property
    def moves_policies(self) -> bool:
        """False: what it learns is in its critic, and the weights of its agents stay."""
        return True

    @property
    def demonstrations(self) -> str | None:
        """A file of them that its critic reads, some for each of its agents; "": it is missing."""
        return None

    @property
    def critics(self) -> dict[str, bool]:
        """The critics that it needs by name, and whether each has a model of its own."""
        needed = {} if self.critic is None else {self.critic: self.critic_reads}
        return needed if self.discriminator is None else needed | {self.discriminator: True}

    # --- hooks, in the order of a step ---

    def make_critic(self, parts: CriticInputs) -> Critic | None:
        """Make the critic that `critic` names, once, as the run is built."""
        return None

    def make_discriminator(self, parts: CriticInputs) -> Discriminator:
        """Make the discriminator that `discriminator` names, once, as the run is built."""
        raise NotImplementedError

    def wrap(self, inner: Algorithm) -> Algorithm:
        """Return what trains instead of the algorithm that a key `inner` names.

        Raises ValueError where that one does not fit.
        """
        raise NotImplementedError

    def keep_group(self, group: Group) -> bool:
        """Return whether to keep the group; if not, the step samples a new task instead."""
        return True

    def least_attempts(self, is_group: bool) -> int:
        """Return the fewest attempts at a task that can be compared.

        is_group: whether a single attempt holds several answers that are paid each.
        """
        return self.min_group

    async def prepare(self, group: Group, replay: Replay) -> None:
        """May replay episodes of the group and note on their turns what came out.

        Replays may run together: no more do than `rollout.concurrency` says.
        """

    @abstractmethod
    def credit(self, episodes: list[Episode]) -> None:
        """Give credit to every trained turn. Pure and repeatable.

        `turn.give_credit(term)` sets `turn.advantages` [T], and keeps how they came about.
        """

    def pairs(self, turns: list[Turn]) -> list[Pair]:
        """Return the pairs that `credit` found among these turns, with `keep_together`."""
        return []

    def chooser(self, critic: Any) -> Chooser | None:
        """Return who chooses between several candidates of what agents say in a call, if anyone."""
        return None

    def judge(self, critic: Any) -> Judge | None:
        """Return who judges what agents say before it is played, in each call; None: nobody."""
        return None

    def fit(self, episodes: list[Episode], critic: Any) -> dict[str, float]:
        """Teach the critic what the episodes earned, after the policies' updates; its metrics."""
        return {}

    def metrics(self) -> dict[str, float]:
        """Return what the algorithm itself counted in this step."""
        return {}

    def after_update(self, policy: str, episodes: list[Episode]) -> None:
        """Note, with `one_policy_at_a_time`, that the turns of `policy` have new_logprobs now."""

    def after_step(self, step: int) -> None:
        """Note that all policies are updated."""

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run must know beside the weights; JSON types."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert not state, f"{type(self).__name__} keeps no state"

    # --- credit ---

    def credited_turns(self, episodes: list[Episode]) -> list[CreditedTurn]:
        """Return the turns that credit compares, each with its episode.

        The advantages of all trained turns are set to 0 first. Raises ValueError if a score is not
        finite.
        """
        turns = []
        for episode in episodes:
            for turn in episode.turns:
                if not turn.trained or turn.tokens is None:
                    continue
                if not (turn.chosen or self.compares_candidates):
                    continue
                if turn.candidate_error:
                    continue  # its world raised: no data, and in no normaliser
                turn.reset_credit()
                if self.mask_truncated and turn.finish == "length":
                    turn.give_credit(LeftOut("it was cut by its length limit", is_dropped=False))
                    continue
                if not math.isfinite(episode.total(turn)):
                    raise ValueError(f"the score of {turn.agent} in {episode.id} is not finite")
                turns.append((episode, turn))
        return turns

    def own_reward(self, episode: Episode, turn: Turn) -> float:
        """Return r_t, less the KL to the reference where that is part of a trained turn's
        reward."""
        if not turn.trained or turn.tokens is None:
            return turn.score
        return turn.score + float(self.kl_rewards(turn).sum(dtype="float64"))

    def token_rewards(self, turn: Turn) -> tuple[float, ...] | None:
        """Return what the KL takes from the reward of each token [T]; None if it takes nothing."""
        rewards = self.kl_rewards(turn)
        return tuple(rewards.astype("float64").tolist()) if rewards.any() else None
