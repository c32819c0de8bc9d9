"""Counts a coach's answers and errors, and stops when too many have no score."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass

from rolecall.core.interfaces.chat_model import Reply
from rolecall.rewards.coach.scores import CoachStopError, Score, Usage


@dataclass(slots=True)
class Totals:
    """The totals of one agent's actions, since this process began."""

    requests: int = 0
    scores: int = 0  # cached ones included
    cached: int = 0
    errors: int = 0
    score_sum: float = 0.0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost_usd: float = 0.0

    @property
    def mean(self) -> float | None:
        """Mean score, without actions that have none."""
        return self.score_sum / self.scores if self.scores else None


class Ledger:
    """Counts what a coach's scores cost and how many failed; it says when to stop."""

    def __init__(
        self, *, max_error_rate: float = 1.0, error_window: int = 1, scorer: str = "the coach"
    ) -> None:
        """`scorer`: what gives the scores, in messages."""
        self.max_error_rate, self.scorer = max_error_rate, scorer
        self.agents: defaultdict[str, Totals] = defaultdict(Totals)
        self._recent: deque[bool] = deque(maxlen=error_window)  # whether each action failed
        self.stopped: CoachStopError | None = None

    def check(self) -> None:
        """Check that a request may be sent; raises CoachStopError otherwise."""
        if self.stopped is not None:
            raise CoachStopError(str(self.stopped))

    def add(self, reply: Reply, usage: Usage, *, agent: str) -> None:
        """Count an answer, readable or not."""
        totals = self.agents[agent]
        usage.prompt_tokens += reply.prompt_tokens
        usage.cached_tokens += reply.cached_tokens
        usage.completion_tokens += reply.completion_tokens
        usage.reasoning_tokens += reply.reasoning_tokens
        usage.cost_usd += reply.usd
        totals.prompt_tokens += reply.prompt_tokens
        totals.completion_tokens += reply.completion_tokens
        totals.cost_usd += reply.usd

    def add_score(self, agent: str, score: Score) -> None:
        totals = self.agents[agent]
        totals.scores += 1
        totals.score_sum += score.verdict.score
        totals.cached += score.cached
        if score.usage.tries:
            self._recent.append(False)

    def add_failure(self, agent: str, error: Exception, *, usage: Usage) -> None:
        """Count an action without a score. Too many of those that were asked about: all stops."""
        if isinstance(error, CoachStopError):
            self.stopped = error
            return
        self.agents[agent].errors += 1
        if not usage.tries:
            return
        self._recent.append(True)
        lost, seen = sum(self._recent), len(self._recent)
        if seen == self._recent.maxlen and lost > self.max_error_rate * seen:
            self.stopped = CoachStopError(
                f"{self.scorer} failed on {lost} of the last {seen} actions; the last: {error}"
            )
