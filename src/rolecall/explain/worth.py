"""Compares a team with single agents that may spend as much, and decides whether it is worth it.

A single agent spends what a team spends by answering several times. It then keeps the answer that
most of its answers agree with (self-consistency, 2203.11171), or the one it finds most likely
(best-of-n without a judge). Where the budget lies between n and n + 1 answers, the score is that of
a mixture of both which spends exactly the budget.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import NormalDist, fmean, stdev
from typing import Literal

from rolecall.monitor.comparison import Measure

Kind = Literal["team", "variant", "single"]
Budget = Literal["tokens", "latency", "price"]
BUDGETS: tuple[Budget, ...] = ("tokens", "latency", "price")
LEAST = 0.05  # gain of a team below which one agent is as good
LEVEL = 0.95  # of all intervals


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt at a task, and what it took."""

    score: float
    sampled: int  # tokens
    prompt: int  # tokens
    serial: int  # tokens of its longest chain of turns, each of which reads the one before
    own_price: float  # of its sampled tokens, and of all prompts but the first
    shared_price: float  # of its first prompt, which attempts at one task pay once
    answer: int | None = None  # equal answers to a task have equal numbers; None: it states none
    likelihood: float | None = None  # mean log-prob of its sampled tokens; None: nobody knows it


@dataclass(slots=True)
class Arm:
    """A team, or what could take its place, with its attempts at each task."""

    name: str
    kind: Kind
    attempts: dict[str, list[Attempt]]

    def means(self) -> dict[str, float]:
        """Return the mean score of each task."""
        return {task: fmean(one.score for one in group) for task, group in self.attempts.items()}

    def spend(self, budget: Budget, number: int = 1) -> float:
        """Return what `number` answers to a task spend on average, at once and side by side."""
        spent = [
            _spend(chunk, budget)
            for group in self.attempts.values()
            for chunk in _chunks(group, number)
        ]
        return fmean(spent)


@dataclass(frozen=True, slots=True)
class Choice:
    """The score of a single agent that answers several times and keeps one answer."""

    arm: str
    rule: str
    budget: Budget
    number: float  # answers to a task, on average
    is_over: bool  # one answer costs more than the team
    is_cut: bool  # the budget allows more answers than were sampled
    score: Measure
    gain: Measure  # of the team over it, task by task
    error: float  # standard error of the gain
    num_tasks: int  # that both could be scored on

    def margin(self, quantile: float) -> float:
        """Return the margin of the gain, which few tasks that are all alike do not make small."""
        return max(quantile * self.error, RULE_OF_THREE / self.num_tasks)


@dataclass(frozen=True, slots=True)
class Variant:
    """A change to the team, and the gain of the team over it."""

    name: str
    score: Measure
    gain: Measure
    sampled: float  # tokens of an attempt
    serial: float
    price: float
    num_tasks: int  # that both could be scored on


@dataclass(slots=True)
class Worth:
    """The comparison of a team with its variants and with single agents."""

    source: str
    score: Measure
    sampled: float
    serial: float
    price: float
    num_tasks: int
    num_sources: int = 1  # of tasks
    unit: str = "tokens"  # of prices
    variants: list[Variant] = field(default_factory=list)
    choices: list[Choice] = field(default_factory=list)
    not_possible: dict[str, str] = field(default_factory=dict)  # arm -> reason
    seconds: float = 0.0

    def verdict(self, budget: Budget = "tokens") -> Verdict:
        """Return whether the team is worth what it spends.

        `yes` where it beats each single agent, each by more than its 95 % margin (an
        intersection-union test); `no` where it gains less than LEAST over one of them, by an
        interval that holds for all of them together (Bonferroni) and spends no more than it.
        """
        rivals = self._rivals(budget)
        if not rivals:
            return Verdict("undecided", None)
        rival = min(rivals, key=lambda one: one.gain.mean)
        if all(one.gain.mean - one.margin(NORMAL) > 0 for one in rivals):
            return Verdict("yes", rival)
        equal = [one for one in rivals if not one.is_over]
        quantile = _joint_quantile(len(equal))
        if any(one.gain.mean + one.margin(quantile) < LEAST for one in equal):
            return Verdict("no", min(equal, key=lambda one: one.gain.mean))
        return Verdict("undecided", rival)

    def tasks_to_decide(self, budget: Budget = "tokens") -> int | None:
        """Return how many tasks would decide if gains stay as they are; None if no number would."""
        rivals = self._rivals(budget)
        equal = [one for one in rivals if not one.is_over]
        quantile = _joint_quantile(len(equal))
        beaten = [_tasks_beyond(one, NORMAL, one.gain.mean) for one in rivals]
        matched = [_tasks_beyond(one, quantile, LEAST - one.gain.mean) for one in equal]
        number = min(max(beaten, default=math.inf), min(matched, default=math.inf))
        return None if math.isinf(number) else math.ceil(number)

    def _rivals(self, budget: Budget) -> list[Choice]:
        return [one for one in self.choices if one.budget == budget and one.rule in PLAYABLE]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Says whether a team is worth what it spends, and which single agent comes nearest."""

    is_worth: Literal["yes", "no", "undecided"]
    rival: Choice | None


NORMAL = NormalDist().inv_cdf((1 + LEVEL) / 2)
RULE_OF_THREE = 3.0  # over the number of tasks: what none of them shows may be as frequent as that
Rule = Callable[[Sequence[Attempt]], float]


def choose_first(answers: Sequence[Attempt]) -> float:
    """Return the score of the first answer."""
    return answers[0].score


def choose_majority(answers: Sequence[Attempt]) -> float:
    """Return the score of the first of the answers that most agree with."""
    votes = Counter(one.answer for one in answers if one.answer is not None)
    if not votes:
        return answers[0].score
    winner = max(votes, key=lambda number: votes[number])  # the first of equal ones
    return next(one.score for one in answers if one.answer == winner)


def choose_likeliest(answers: Sequence[Attempt]) -> float:
    """Return the score of the answer with the highest mean log-prob."""
    return max(answers, key=lambda one: one.likelihood or 0.0).score


def choose_best(answers: Sequence[Attempt]) -> float:
    """Return the highest score: what a perfect judge would choose."""
    return max(one.score for one in answers)


RULES: dict[str, Rule] = {
    "one answer": choose_first,
    "majority": choose_majority,
    "likeliest": choose_likeliest,
    "perfect judge": choose_best,
}
PLAYABLE = frozenset(RULES) - {"perfect judge"}  # rules that know no scores


def compare_arms(team: Arm, others: Sequence[Arm], *, source: str, unit: str = "tokens") -> Worth:
    """Compare a team with its variants at their own cost, and with single agents at its cost.

    Tasks that an arm could not be scored on are left out of the comparison with it. Raises
    ValueError for an arm that shares no task with the team.
    """
    result = Worth(
        source=source,
        score=measure(list(team.means().values())),
        sampled=team.spend("tokens"),
        serial=team.spend("latency"),
        price=team.spend("price"),
        num_tasks=len(team.attempts),
        unit=unit,
    )
    for arm in others:
        if not team.attempts.keys() & arm.attempts.keys():
            raise ValueError(f"{arm.name} shares no task with the team")
        if arm.kind == "single":
            result.choices += _choices(team, arm)
        else:
            result.variants.append(_variant(team, arm))
    return result


def measure(values: list[float]) -> Measure:
    """Return a mean over tasks with its 95 % margin."""
    return Measure(fmean(values), NORMAL * _error(values) if len(values) > 1 else None)


def _variant(team: Arm, arm: Arm) -> Variant:
    means = arm.means()
    gains = _gains(team, means)
    return Variant(
        arm.name,
        measure(list(means.values())),
        measure(gains),
        arm.spend("tokens"),
        arm.spend("latency"),
        arm.spend("price"),
        len(gains),
    )


def _choices(team: Arm, arm: Arm) -> list[Choice]:
    """Return the scores of a single agent for each budget and each rule that it has."""
    most = min(map(len, arm.attempts.values()))
    attempts = [one for group in arm.attempts.values() for one in group]
    rules = dict(RULES)
    if all(one.answer is None for one in attempts):
        del rules["majority"]
    if any(one.likelihood is None for one in attempts):
        del rules["likeliest"]
    choices = []
    for budget in BUDGETS:
        allowed = team.spend(budget)
        low, share = _fit(arm, budget, allowed, most)
        is_over = arm.spend(budget) > allowed
        is_cut = low == most and arm.spend(budget, most) < allowed
        for name, rule in rules.items():
            size, more = (1, 0.0) if rule is choose_first else (low, share)
            number = size + more
            if rule is not choose_first and number == 1.0:
                continue  # there is nothing to choose from
            means = _mixed(arm, rule, size, more)
            gains = _gains(team, means)
            choices.append(
                Choice(
                    arm.name,
                    name,
                    budget,
                    number,
                    is_over=is_over,
                    is_cut=is_cut,
                    score=measure(list(means.values())),
                    gain=measure(gains),
                    error=_error(gains),
                    num_tasks=len(gains),
                )
            )
    return choices


def _fit(arm: Arm, budget: Budget, allowed: float, most: int) -> tuple[int, float]:
    """Return n and the share of tasks with n + 1 answers that together spend what is allowed."""
    spent = [arm.spend(budget, number) for number in range(1, most + 1)]
    low = max((n for n, cost in enumerate(spent, 1) if cost <= allowed), default=0)
    if low == 0:
        return 1, 0.0
    if low == most:
        return most, 0.0
    return low, (allowed - spent[low - 1]) / (spent[low] - spent[low - 1])


def _mixed(arm: Arm, rule: Rule, low: int, share: float) -> dict[str, float]:
    """Return the mean score of each task where a share of the attempts has one more answer."""
    means = {}
    for task, group in arm.attempts.items():
        score = fmean(rule(chunk) for chunk in _chunks(group, low))
        if share:
            more = fmean(rule(chunk) for chunk in _chunks(group, low + 1))
            score += share * (more - score)
        means[task] = score
    return means


def _chunks(group: list[Attempt], size: int) -> list[list[Attempt]]:
    """Return as many separate samples of `size` attempts as a group has."""
    size = min(size, len(group))
    return [group[start : start + size] for start in range(0, len(group) - size + 1, size)]


def _spend(answers: Sequence[Attempt], budget: Budget) -> float:
    """Return what answers that are sampled side by side spend together."""
    if budget == "latency":
        return max(one.serial for one in answers)
    if budget == "tokens":
        return sum(one.sampled for one in answers)
    return answers[0].shared_price + sum(one.own_price for one in answers)


def _gains(team: Arm, means: Mapping[str, float]) -> list[float]:
    """Return the team's mean score less another's, for each task that both have."""
    own = team.means()
    return [own[task] - mean for task, mean in means.items() if task in own]


def _joint_quantile(number: int) -> float:
    """Return the quantile of one-sided intervals that hold for so many gains together."""
    return NormalDist().inv_cdf(1 - (1 - LEVEL) / max(1, number))


def _tasks_beyond(choice: Choice, quantile: float, distance: float) -> float:
    """Return the number of tasks at which the margin of a gain is down to a distance."""
    if distance <= 0:
        return math.inf
    needed = choice.num_tasks * (quantile * choice.error / distance) ** 2
    return max(needed, RULE_OF_THREE / distance)


def _error(values: list[float]) -> float:
    return stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
