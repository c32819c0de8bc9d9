"""Lists the parts that an algorithm may make its critic of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rolecall.config.optimizer import Optimizer
from rolecall.core.types import Turn

if TYPE_CHECKING:
    from rolecall.models.language_model import LanguageModel


@dataclass(frozen=True, slots=True)
class CriticInputs:
    """The models of a run, and what `critics.NAME` of its config says."""

    agents: list[str]  # of the team, in its order
    models: dict[str, LanguageModel]  # by policy
    load: Callable[[], LanguageModel]  # loads the critic's own model, critics.NAME.base
    experts: Callable[[str], dict[str, list[Turn]]]  # reads demonstrations: (file) -> by agent
    optimizer: Optimizer
    budget: int  # most tokens in one forward pass
    steps: int  # of the run
    seed: int
    share_prefixes: bool
