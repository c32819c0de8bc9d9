"""Records how a turn came by its advantages, as numbers from which they can be computed again.

An algorithm gives credit term by term, `turn.give_credit(term)`. Each term is computed from its own
fields and from what the terms before it came to. So what is written down with an episode is the
computation itself: `recompute` returns the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from rolecall.core import gae

Floats = NDArray[np.float32]
Amounts = Mapping[str, float]  # name, such as `outcome` or `own` -> what it adds to a score
Key = Mapping[str, str]  # name, such as `task` or `agent` -> what compared turns have in common
STD_FLOOR = 1e-6


class Notes(Protocol):
    """Defines what a term reads of the notes on its turn."""

    values: Floats | None
    imitated: Floats | None


def divide_by_std(gain: float, std: float) -> float:
    """Return gain / (std + 1e-6); 0 if nothing varies."""
    return gain / (std + STD_FLOOR) if std else 0.0


@dataclass(frozen=True, slots=True)
class Compared:
    """A score less the mean of those it is compared with, divided by their spread.

    ((score - mean) / (std + 1e-6) + own - own_mean) * factor, added to the terms before.
    """

    score: float
    mean: float | None  # None: there was nothing to compare with, and the gain is 0
    n: int = 0  # samples that are compared; 0: the mean is a constant
    made_of: Amounts = field(default_factory=dict)  # adds up to the score, if no limit cut it
    key: Key = field(default_factory=dict)  # {}: all turns of the step
    sample: str = "turn"  # what counts as one: turn | episode_agent | call | candidate
    baseline: Literal["mean", "leave_one_out", "moving_average"] = "mean"
    std: float | None = None  # None: not divided
    std_n: int | None = None  # None: of the samples above
    std_key: Key | None = None
    own: float | None = None  # own reward where mean and std are of outcomes alone
    own_mean: float | None = None  # of the agent's turns in the group
    factor: float = 1.0

    @property
    def gain(self) -> float:
        gain = 0.0 if self.mean is None else self.score - self.mean
        if self.std is not None:
            gain = divide_by_std(gain, self.std)
        if self.own is not None and self.own_mean is not None:
            gain = gain + self.own - self.own_mean
        return gain * self.factor

    def compute(self, before: Floats, notes: Notes) -> Floats:
        return before + np.full(len(before), self.gain, dtype=np.float32)


@dataclass(frozen=True, slots=True)
class Whitened:
    """The advantages so far, less their mean over a step and divided by their spread."""

    mean: float  # 0 where they are not centred
    std: float  # 0: nothing varied, and all become 0
    n: int  # tokens or turns
    floor: float  # is added to the spread
    of: str  # whose tokens or turns they are

    def compute(self, before: Floats, notes: Notes) -> Floats:
        if not self.std:
            return np.zeros_like(before)
        scaled = (before.astype(np.float64) - self.mean) / (self.std + self.floor)
        return scaled.astype(np.float32)


@dataclass(frozen=True, slots=True)
class Discounted:
    """A turn's score, earned with its last token and discounted to the tokens before it."""

    score: float
    made_of: Amounts
    gamma: float
    token_rewards: tuple[float, ...] | None = None  # [T] the KL's share; None: there is none

    def compute(self, before: Floats, notes: Notes) -> Floats:
        rewards = _token_rewards(self.token_rewards, len(before))
        rewards[-1] += self.score
        for token in range(len(rewards) - 2, -1, -1):
            rewards[token] += self.gamma * rewards[token + 1]
        return rewards.astype(np.float32)


@dataclass(frozen=True, slots=True)
class TokenAdvantage:
    """GAE over the turn's tokens, whose values are noted on the turn.

    The turn's score is earned with its last token.
    """

    score: float
    made_of: Amounts
    gamma: float  # discount from token to token
    gamma_turn: float  # discount from the last token on
    lam: float
    next_value: float  # of the token after the last one; 0 at the end
    next_advantage: float
    token_rewards: tuple[float, ...] | None = None  # [T] the KL's share; None: there is none

    def advantages(self, values: Floats) -> gae.Doubles:
        """Return the advantages of the tokens [T] in float64."""
        rewards = _token_rewards(self.token_rewards, len(values))
        rewards[-1] += self.score
        discounts = np.full(len(values), self.gamma)
        discounts[-1] = self.gamma_turn
        return gae.advantages(
            rewards,
            values,
            discounts=discounts,
            lam=self.lam,
            next_value=self.next_value,
            next_advantage=self.next_advantage,
        )

    def compute(self, before: Floats, notes: Notes) -> Floats:
        if notes.values is None:
            raise ValueError("the values of the turn's tokens are not there")
        return self.advantages(notes.values).astype(np.float32)


@dataclass(frozen=True, slots=True)
class StepAdvantage:
    """GAE over joint steps: what came after one, less what a critic expected."""

    reward: float  # of the joint step; the agent's outcome comes with the last one
    made_of: Amounts
    value: float
    discount: float
    lam: float
    next_value: float  # of the joint step after it; 0 at the end
    next_advantage: float
    step: int  # number of the joint step, from 0
    num_steps: int

    @property
    def advantage(self) -> float:
        return float(
            gae.advantages(
                [self.reward],
                [self.value],
                discounts=[self.discount],
                lam=self.lam,
                next_value=self.next_value,
                next_advantage=self.next_advantage,
            )[0]
        )

    def compute(self, before: Floats, notes: Notes) -> Floats:
        return np.full(len(before), self.advantage, dtype=np.float32)


@dataclass(frozen=True, slots=True)
class Replayed:
    """The return of an episode, less that of its replays without the turn or of a greedy play.

    It takes the place of the terms before it.
    """

    earned: float
    replayed: float  # a mean over replays
    own: float  # penalties and other rewards of this action alone
    by: Literal["without_turn", "greedy"] = "without_turn"  # what was played for comparison

    def compute(self, before: Floats, notes: Notes) -> Floats:
        gain = self.earned - self.replayed
        return np.full(len(before), gain + self.own, dtype=np.float32)


@dataclass(frozen=True, slots=True)
class Preferred:
    """1 for the better turn of a pair and -1 for the worse one."""

    score: float
    other_score: float
    other: str  # id of the other turn

    def compute(self, before: Floats, notes: Notes) -> Floats:
        return np.full(len(before), 1.0 if self.score > self.other_score else -1.0, np.float32)


@dataclass(frozen=True, slots=True)
class Imitated:
    """1 for each token that is imitated, or the weight that a data set gives it; 0 is wrong."""

    score: float
    made_of: Amounts
    threshold: float

    def compute(self, before: Floats, notes: Notes) -> Floats:
        return np.ones_like(before) if notes.imitated is None else notes.imitated.copy()


@dataclass(frozen=True, slots=True)
class Best:
    """1 for the candidate of a call that a critic values most, and 0 for the others."""

    number: int  # of this candidate
    values: tuple[float, ...]  # of all candidates of the call

    def compute(self, before: Floats, notes: Notes) -> Floats:
        is_best = self.number == self.values.index(max(self.values))
        return np.full(len(before), float(is_best and len(self.values) > 1), dtype=np.float32)


@dataclass(frozen=True, slots=True)
class Exponential:
    """min(exp(estimate / beta), most): how strongly a turn is imitated."""

    estimate: float  # what a critic says that the turn adds
    beta: float
    most: float

    def compute(self, before: Floats, notes: Notes) -> Floats:
        weight = math.exp(min(self.estimate / self.beta, math.log(self.most)))
        return np.full(len(before), weight, dtype=np.float32)


@dataclass(frozen=True, slots=True)
class LeftOut:
    """The turn is not trained on, and `reason` says why."""

    reason: str
    is_dropped: bool = True  # False: it keeps an advantage of 0

    def compute(self, before: Floats, notes: Notes) -> Floats | None:
        return None if self.is_dropped else np.zeros_like(before)


CreditTerm = (
    Compared
    | Whitened
    | Discounted
    | TokenAdvantage
    | StepAdvantage
    | Replayed
    | Preferred
    | Imitated
    | Best
    | Exponential
    | LeftOut
)
KINDS: dict[str, type[CreditTerm]] = {kind.__name__: kind for kind in CreditTerm.__args__}


def recompute(terms: tuple[CreditTerm, ...], notes: Notes, *, tokens: int) -> Floats | None:
    """Return the advantages [tokens] that these terms come to; None for a turn that is left out.

    Raises ValueError where a term needs the values of a critic and the turn has none.
    """
    advantages: Floats | None = np.zeros(tokens, dtype=np.float32)
    for term in terms:
        advantages = None if advantages is None else term.compute(advantages, notes)
    return advantages


def dump_credit(terms: tuple[CreditTerm, ...]) -> list[dict[str, Any]]:
    """Return the terms as JSON types, without fields that have their default."""
    return [{"kind": type(term).__name__, **_changed_fields(term)} for term in terms]


def load_credit(records: list[dict[str, Any]]) -> tuple[CreditTerm, ...]:
    """Return the terms of `dump_credit`."""
    return tuple(map(_load_term, records))


def _load_term(record: dict[str, Any]) -> CreditTerm:
    kind: Any = KINDS[record["kind"]]
    values = {name: value for name, value in record.items() if name != "kind"}
    term: CreditTerm = kind(
        **{name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
    )
    return term


def _changed_fields(term: CreditTerm) -> dict[str, Any]:
    defaults = FIELD_DEFAULTS[type(term).__name__]
    values = ((name, getattr(term, name), default) for name, default in defaults.items())
    return {name: value for name, value, default in values if value != default}


def _list_defaults(kind: type[CreditTerm]) -> dict[str, Any]:
    """Return the default of each field of a term; MISSING where there is none."""
    return {
        one.name: one.default if one.default_factory is MISSING else one.default_factory()
        for one in fields(kind)
    }


FIELD_DEFAULTS = {name: _list_defaults(kind) for name, kind in KINDS.items()}


def _token_rewards(rewards: tuple[float, ...] | None, tokens: int) -> gae.Doubles:
    return np.zeros(tokens) if rewards is None else np.array(rewards, dtype=np.float64)
