"""Reads what a program says of its episode: the answer, and rewards where it scores itself."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rolecall.core.json_types import JsonValue

TEAM = "team"
Reward = Annotated[float, Field(allow_inf_nan=False)]


class OutcomeFields(BaseModel):
    model_config = ConfigDict(extra="forbid")
    answer: str | int | float | None = None
    reward: Reward | None = None
    rewards: dict[str, Reward] = {}


@dataclass(frozen=True, slots=True)
class Outcome:
    """An answer, if there is one, and rewards by agent or of the `team`."""

    answer: str | None = None
    rewards: dict[str, float] = field(default_factory=dict)


def read_outcome(value: JsonValue, agents: Collection[str]) -> Outcome:
    """Return the outcome that a text, a number or an object with its fields says.

    {"answer": "4", "reward": 1.0} or {"rewards": {"solver": 1.0, "verifier": 0.5}}. Raises
    ValueError for another field, a reward that is no finite number and one of nobody.
    """
    if value is None:
        return Outcome()
    if isinstance(value, str | int | float):
        return Outcome(str(value))
    try:
        fields = OutcomeFields.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field_name = ".".join(map(str, first["loc"])) or "outcome"
        message = f"{field_name}: {first['msg']}; write a text, or answer, reward and rewards"
        raise ValueError(message) from error
    rewards = dict(fields.rewards)
    if fields.reward is not None:
        rewards[TEAM] = fields.reward
    if nobody := sorted(set(rewards) - {TEAM, *agents}):
        names = ", ".join([TEAM, *agents])
        raise ValueError(f"rewards.{nobody[0]}: there is no such agent; name one of {names}")
    return Outcome(None if fields.answer is None else str(fields.answer), rewards)
