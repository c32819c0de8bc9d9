"""Declares what a coach says of an action: a score with reasons and price, or an error."""

from __future__ import annotations

from dataclasses import dataclass

from rolecall.core.errors import InfrastructureError, RunEndingError


class CoachError(InfrastructureError):
    """The action has no score: unknown, not 0."""


class CoachStopError(CoachError, RunEndingError):
    """No later call can succeed either, so none is made."""


class FormatError(ValueError):
    """An answer from which no score can be read."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The contents of a coach's answer."""

    score: float  # 0..scale
    reasoning: str
    answer_correct: bool | None = None  # only where the coach was shown the ground truth
    scale: float = 10.0


@dataclass(slots=True)
class Usage:
    """The cost of a score: all requests for it, failed ones included."""

    model: str
    prompt_tokens: int = 0  # cached ones included
    cached_tokens: int = 0
    completion_tokens: int = 0  # reasoning included
    reasoning_tokens: int = 0
    cost_usd: float = 0.0
    latency_s: float = 0.0  # of all requests, waiting for a turn and pauses included
    tries: int = 0  # questions sent; 0: answered by the cache or by this process

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


@dataclass(frozen=True, slots=True)
class Score:
    """A verdict and what it cost."""

    verdict: Verdict
    usage: Usage
    cached: bool = False
