"""Counts a coach's answers and errors, and stops when too much was spent or lost."""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass

from rolecall.rewards.coach.providers import Reply
from rolecall.rewards.coach.scores import BudgetError, CoachStopError, Score, Usage
from rolecall.runtime.spending import Account, Budget, Prices


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
        self,
        *,
        prices: Prices,
        budget: Budget,
        step_budget: Budget,
        max_error_rate: float,
        error_window: int,
    ) -> None:
        if (budget.usd or step_budget.usd) and not (prices.prompt or prices.completion):
            raise ValueError("a coach's budget in USD needs price_prompt or price_completion")
        if not 0 < max_error_rate <= 1 or error_window < 1:
            raise ValueError(
                f"max_error_rate must be in (0, 1] and error_window at least 1, got "
                f"{max_error_rate} and {error_window}"
            )
        self.account, self.step_budget = Account(prices, budget), step_budget
        self.max_error_rate = max_error_rate
        self.agents: defaultdict[str, Totals] = defaultdict(Totals)
        self._recent: deque[bool] = deque(maxlen=error_window)  # whether each action failed
        self.stopped: CoachStopError | None = None

    def check(self, step: str) -> None:
        """Raises CoachStopError where no request may be sent any more."""
        if self.stopped is not None:
            raise type(self.stopped)(str(self.stopped))
        for spent, budget, of, key in (
            (self.account.spent, self.account.budget, "the run", "budget"),
            (self.account.get_part(step), self.step_budget, f"step {step}", "step_budget"),
        ):
            if bound := spent.find_reached(budget):
                key += "_tokens" if bound.endswith("tokens") else "_usd"
                raise BudgetError(
                    f"the coach's budget of {bound} for {of} is spent; continue the run with a "
                    f"larger rewards.coach.{key}"
                )

    def add(self, reply: Reply, usage: Usage, *, agent: str, step: str) -> None:
        """Count an answer, readable or not."""
        cost, totals = self.account.add(reply, part=step), self.agents[agent]
        usage.prompt_tokens += reply.prompt_tokens
        usage.cached_tokens += reply.cached_tokens
        usage.completion_tokens += reply.completion_tokens
        usage.reasoning_tokens += reply.reasoning_tokens
        usage.cost_usd += cost
        totals.prompt_tokens += reply.prompt_tokens
        totals.completion_tokens += reply.completion_tokens
        totals.cost_usd += cost

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
            if not isinstance(error, BudgetError):  # which the next step may not have spent
                self.stopped = error
            return
        self.agents[agent].errors += 1
        if not usage.tries:
            return
        self._recent.append(True)
        lost, seen = sum(self._recent), len(self._recent)
        if seen == self._recent.maxlen and lost > self.max_error_rate * seen:
            self.stopped = CoachStopError(
                f"the coach failed on {lost} of the last {seen} actions; the last: {error}"
            )
