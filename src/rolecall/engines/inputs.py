"""Holds what an engine is made of."""

from __future__ import annotations

from dataclasses import dataclass

from rolecall.models.language_model import LanguageModel
from rolecall.runtime.call_tree import IdleBarrier


@dataclass(frozen=True, slots=True)
class EngineInputs:
    """An engine of your own is a class that is called with these and with its options."""

    models: dict[str, LanguageModel]  # by policy: those being trained, or copies of them
    barrier: IdleBarrier  # waits until every live coroutine of every episode waits for the engine
    deterministic: bool
