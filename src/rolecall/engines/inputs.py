"""Holds what an engine is made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from rolecall.agents.chat_template import Tokenizer
from rolecall.models.language_model import LanguageModel
from rolecall.runtime.call_tree import IdleBarrier


@dataclass(frozen=True, slots=True)
class EngineInputs:
    """Holds what an engine is made of; one of your own is called with these and its options."""

    models: dict[str, LanguageModel]  # by policy: those being trained, or copies of them
    barrier: IdleBarrier  # waits until every live coroutine of every episode waits for the engine
    deterministic: bool = False
    tokenizers: Mapping[str, Tokenizer] = field(default_factory=dict)  # by policy
    threads: int = 1  # of a CPU, for an engine in a process of its own
    sleeps: bool | None = None  # whether it frees its GPUs during updates; None: as the config says
