"""Declares the keys that say which turns of episodes become rows of a data set."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, ValidationError, model_validator

from rolecall.config.errors import explain
from rolecall.config.section import Section
from rolecall.core.errors import ConfigError
from rolecall.core.json_types import JsonObject


class CollectConfig(Section):
    """Selects the turns that become rows: of demonstrations, or of preferences."""

    least: float | None = Field(None, ge=-1e9, le=1e9)
    """Least reward of a turn: its agent's outcome plus its own. In a pair, of the better turn."""
    step_least: float | None = Field(None, ge=-1e9, le=1e9)
    """Least own reward of a turn, from the world, a coach or a penalty. A turn below it becomes no
    row, but stays in the prompts of later turns. A turn without an own reward passes. `least` is
    then the least outcome alone."""
    best_of: int | None = Field(None, ge=1, le=100_000)
    """Keep the turns of only this many attempts at each task: those in which their agent earned
    most."""
    pairs: bool = False
    """Write preferences instead of demonstrations: the best and the worst of an agent's turns with
    identical prompt tokens."""
    imitate: Literal["agent", "world", "both"] = "agent"
    """Imitate what agents said, what the world showed them next, or both. `least`, `step_least` and
    `best_of` select among what agents said; the world's answers are all kept."""
    weigh: Literal["alike", "reward"] = "alike"
    """Weight of a row for sft: the same for all (`alike`), or its reward (`reward`), which leaves
    out rows that earned nothing."""
    world_weight: float = Field(1.0, gt=0, le=1000)
    """Weight of a row of what the world showed next; a row of what an agent said has 1."""
    agents: list[str] = []
    """Keep only turns of these agents; by default of all that are trained."""

    @model_validator(mode="after")
    def _check_effects(self) -> CollectConfig:
        if self.pairs and self.imitate != "agent":
            raise ValueError("imitate has no effect on pairs; leave one of the two out")
        if self.pairs and self.weigh != "alike":
            raise ValueError("weigh has no effect on pairs; leave one of the two out")
        if self.imitate == "agent" and self.world_weight != 1.0:
            raise ValueError(
                "world_weight has no effect without what the world showed; write imitate=both"
            )
        if self.pairs and self.best_of is not None:
            raise ValueError(
                "best_of has no effect on pairs, which need bad attempts beside good ones; leave "
                "one of the two out"
            )
        if self.pairs and self.step_least is not None:
            raise ValueError(
                "step_least has no effect on pairs, which need wrong steps beside right ones; "
                "leave one of the two out"
            )
        return self

    @property
    def kind(self) -> str:
        """The kind of its rows, as `Algorithm.takes_data` names it."""
        return "preferences" if self.pairs else "demonstrations"


def collect_config(given: JsonObject) -> CollectConfig:
    """Return the config of the command line's options; raises ConfigError that names them."""
    try:
        return CollectConfig.model_validate(given)
    except ValidationError as error:
        wrong = explain(error, CollectConfig, given)
        raise ConfigError(*(_as_option(problem) for problem in wrong.problems)) from error


def _as_option(problem: str) -> str:
    """Return a problem with the option's name in place of the key: `--best-of: ...` for `best_of:
    ...`.
    """
    key, _, message = problem.partition(": ")
    if not key and message.startswith("world_weight"):
        return "--world-weight has no effect without what the world showed; write --imitate both"
    if not key:
        return f"--pairs: {message.partition(' (it is ')[0]}"
    name = "agent" if key == "agents" else key.replace("_", "-")
    return f"--{name}: {message}"
