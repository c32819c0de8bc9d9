"""MA-AIRL (1907.13220): a learned discriminator is the reward, and experts show what earns it.

Each agent is paid for turns that its discriminator takes for those of its experts; any algorithm
that compares turns then trains on that, by default Dr. MAS. What the world pays is read by nobody:
its scores only say how well the team does. Penalties and other rewards of single actions still
count.

Known answer: f .5, log pi -1 -> D .817574, reward 1.5; D .5 everywhere -> loss 2 ln 2, reward 0.
With `shaping` the added terms of an attempt telescope: at gamma 1 they sum to -h of its beginning.
Degenerate: an agent without turns of an expert is an error before the run begins.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from rolecall.algorithms.base import Algorithm
from rolecall.algorithms.drmas import DrMas
from rolecall.config.schema import Named
from rolecall.core.interfaces.critic import Discriminator
from rolecall.core.json_types import Options
from rolecall.core.types import Episode, Turn
from rolecall.critics.inputs import CriticInputs

PAYING = ("experts", "reward", "shaping")  # options of the discriminator
OWN = frozenset({*PAYING, "inner"})
CREDIT = ("advantages", "returns", "weight")  # what an algorithm writes on turns


class Imitating(Algorithm):
    """Pays another algorithm's turns by a discriminator, as MA-AIRL does."""

    discriminator: ClassVar[str | None] = "discriminator"

    experts: str = ""
    """File of demonstrations, as `rolecall collect` writes them: what each agent should say."""
    reward: Literal["logit", "raw"] = "logit"
    """Pay log D - log(1 - D), or the score f alone, which the policy's entropy is no part of."""

    shaping: float | None = Field(None, gt=0, le=1)
    """Discount gamma of a potential h of what an agent was shown: gamma h(s') - h(s) is added to f,
    s' being what it was shown at its next turn, with h 0 after its last. Without it f is alone."""

    @property
    def demonstrations(self) -> str | None:
        return self.experts

    def make_discriminator(self, parts: CriticInputs) -> Discriminator:
        from rolecall.critics.discriminator import Discriminator as Scorers

        experts = parts.experts(self.experts)
        return Scorers(parts, experts, reward=self.reward, shaping=self.shaping)

    def credit(self, episodes: list[Episode]) -> None:
        """Rewards [1.5, 0, -1.5] of an agent's turns -> [1, 0, -1] with Dr. MAS, whatever the world
        pays.
        """
        seen = _as_paid_inside(episodes)
        super().credit(seen)  # type: ignore[safe-super]  # of the one it joins
        for episode, copied in zip(episodes, seen, strict=True):
            for turn, paid in zip(episode.turns, copied.turns, strict=True):
                for name in CREDIT:
                    setattr(turn, name, getattr(paid, name))
                turn.training.credit = paid.training.credit

    def fit(self, episodes: list[Episode], critic: Any) -> dict[str, float]:
        """Fit a critic to what the discriminator pays."""
        return super().fit(_as_paid_inside(episodes), critic)


class MaAirl(Imitating, DrMas):
    """Dr. MAS on what a discriminator pays, or the algorithm `inner` on that."""

    inner: Named | None = None
    """Another algorithm instead of Dr. MAS, with its options: `{name: mappo, epochs: 2}`. It brings
    its loss and its critic; keys of Dr. MAS are then none of this one."""

    @model_validator(mode="after")
    def _check_inner(self) -> MaAirl:
        if self.inner is not None and (options := sorted(self.model_fields_set - OWN)):
            raise ValueError(f"{options[0]} is of the algorithm that trains; write it in inner")
        return self

    def wrap(self, inner: Algorithm) -> Algorithm:
        """Return the inner algorithm, trained on what the discriminator pays.

        Raises ValueError for one that reads anything other than rewards of played turns.
        """
        kind = type(inner)
        other = kind.discriminator is not None or kind.takes_data is not None
        prepares = kind.prepare is not Algorithm.prepare or kind.filters_groups
        asks = kind.judge is not Algorithm.judge or kind.chooser is not Algorithm.chooser
        if other or prepares or asks or kind.compares_candidates:
            raise ValueError(
                "it does not train on rewards of played turns alone; use one that does, such as "
                "grpo, rloo, gspo, ppo or mappo"
            )
        options = {name: getattr(inner, name) for name in inner.model_fields_set}
        return _joined(kind, options | {name: getattr(self, name) for name in PAYING})


def _joined(kind: type[Algorithm], options: Options) -> Algorithm:
    """Return the algorithm of class `kind` with these options, paid by a discriminator."""
    return _class_around(kind)(**options)


@cache
def _class_around(kind: type[Algorithm]) -> type[Algorithm]:
    """Return the one class that adds the discriminator to `kind`.

    It cannot be imported by name, so its objects are pickled for ranks by kind and options.
    """

    def reduce(self: Algorithm) -> tuple[Any, ...]:
        return _joined, (kind, {name: getattr(self, name) for name in self.model_fields_set})

    body = {"__module__": kind.__module__, "__reduce__": reduce}
    return type(f"MaAirl{kind.__name__}", (Imitating, kind), body)


def _as_paid_inside(episodes: list[Episode]) -> list[Episode]:
    """Return the episodes as the algorithm inside sees them.

    The discriminator pays each turn; neither the outcome nor what the workflow or the world paid
    for an action is there. Penalties and other rewards of single actions stay.
    """
    return [replace(e, rewards={}, turns=[_paid_inside(t) for t in e.turns]) for e in episodes]


def _paid_inside(turn: Turn) -> Turn:
    paid = turn.training.inner_reward
    inner = {} if paid is None else {"discriminator": paid}
    notes = replace(turn.training)
    return replace(
        turn, rewards=turn.rewards | inner, world_rewards={}, payments={}, training=notes
    )
