"""Turns attempts at held-out tasks into avg@n, maj@n and pass@k, by source, with margins."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from math import comb, fsum, sqrt
from statistics import fmean, stdev
from typing import Any

from rolecall.config.evaluation import EvaluationConfig
from rolecall.core.types import Episode, Group
from rolecall.grading.votes import elect, read_vote

AREAS = ("answer", "tree", "submission")  # of the measures of episodes that are averaged


@dataclass(frozen=True, slots=True)
class Score:
    """A mean over tasks, as a fraction, and half the width of its 95 % confidence interval."""

    mean: float
    margin: float | None  # 1.96 standard errors of the mean over tasks
    num_tasks: int


@dataclass(frozen=True, slots=True)
class TaskScore:
    """The score of all attempts at one task."""

    source: str
    family: str
    samples: int  # attempts that were asked for
    mean: float  # over those that could be scored
    passed: float | None  # pass@k; None where fewer than k could be scored
    voted: float | None  # 1 if the answer of most attempts is right; None: none gives an answer
    measures: dict[str, dict[str, float]]  # by area and name, such as answer, strict


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """Chance that one of k samples is correct: 1 - C(n - c, k) / C(n, k) (2107.03374, eq. 1).

    pass_at_k(8, 2, 1) -> 0.25; unbiased because it averages over all k-subsets of the n samples.
    """
    if not 0 < k <= num_samples:
        raise ValueError(f"pass@{k} needs at least {k} samples (there are {num_samples})")
    return 1.0 - comb(num_samples - num_correct, k) / comb(num_samples, k)


def over_tasks(values: list[float]) -> Score:
    """Mean and margin. One value has no margin: attempts at one task are not independent."""
    margin = 1.96 * stdev(values) / sqrt(len(values)) if len(values) > 1 else None
    return Score(fmean(values), margin, len(values))


def over_sources(scores: list[Score]) -> Score:
    """Return the mean of the sources' means, which count alike however many tasks each has."""
    margins = [score.margin for score in scores if score.margin is not None]
    whole = len(margins) == len(scores)
    margin = sqrt(fsum(m * m for m in margins)) / len(scores) if whole else None
    return Score(fmean(s.mean for s in scores), margin, sum(s.num_tasks for s in scores))


def summarise(groups: Iterable[Group], options: EvaluationConfig) -> dict[str, Any]:
    """Summarise groups that are all there, as `Tally.summary` does."""
    tally = Tally(options)
    for group in groups:
        tally.add(group)
    return tally.summary()


class Tally:
    """Counts groups one by one and keeps of each a few numbers."""

    def __init__(self, options: EvaluationConfig) -> None:
        self.options = options
        self.tasks: list[TaskScore] = []
        self.num_scored = 0  # attempts

    def add(self, group: Group) -> None:
        """Add the attempts at one task that could be scored; at least one."""
        agent = self.options.agent
        task, scores = group[0].task, [episode.agent_score(agent) or 0.0 for episode in group]
        samples = self.options.samples_per_task(task.source)
        k = self.options.choose_k(samples)
        right = sum(score >= 1.0 for score in scores)
        passed = pass_at_k(len(group), right, k) if len(group) >= k else None
        measures = {
            area: {
                name.removeprefix(f"{area}/"): fmean(values)
                for name, values in measurements_by_name(group, f"{area}/").items()
            }
            for area in AREAS
        }
        self.tasks.append(
            TaskScore(
                task.source,
                task.family,
                samples,
                fmean(scores),
                passed,
                _vote(group, scores),
                measures,
            )
        )
        self.num_scored += len(group)

    def summary(self) -> dict[str, Any]:
        """Return {"avg@8": .., "avg@8_margin": .., "pass@8": .., ..., "num_tasks": .., "by_source":
        {..}}.

        These are means over all tasks. Where there are several sources, "over_sources" has the
        means of their means; "by_family" is there too where environments are mixed. avg@n is that
        of tasks with different numbers of attempts. maj@n is the share of tasks whose most frequent
        answer is right, where attempts give answers and there are several. Of an environment that
        reads answers in several forms, "answer" has the share of right answers in each:
        {"strict": .., "lenient": ..}. "tree" has the measures of trees of answers, where "best" is
        the share of tasks of which any answer of the tree is right, and "submission" those of data
        science.
        """
        sources: dict[str, list[TaskScore]] = defaultdict(list)
        families: dict[str, list[TaskScore]] = defaultdict(list)
        for task in self.tasks:
            sources[task.source].append(task)
            if task.family:
                families[task.family].append(task)
        scores = self._scores(self.tasks, self.options.headline)
        if len(sources) > 1:
            scores["over_sources"] = self._over_sources(list(sources.values()))
        for kind, parts in (("by_source", sources), ("by_family", families)):
            if parts or kind == "by_source":
                scores[kind] = {name: self._scores(parts[name]) for name in sorted(parts)}
        return scores

    def _scores(self, tasks: list[TaskScore], headline: str = "") -> dict[str, Any]:
        scores: dict[str, Any] = _named(
            headline or _average(tasks), over_tasks([task.mean for task in tasks])
        )
        passed = [task.passed for task in tasks if task.passed is not None]
        if passed and (name := self._pass(tasks)):
            scores |= _named(name, over_tasks(passed))
        if votes := _votes(tasks):
            scores |= _named(_average(tasks, "maj"), over_tasks(votes))
        for area in AREAS:
            measures = [task.measures[area] for task in tasks if task.measures[area]]
            names = sorted({name for measured in measures for name in measured})
            if names:
                scores[area] = {
                    name: fmean(measured[name] for measured in measures if name in measured)
                    for name in names
                }
        return scores | {"num_tasks": len(tasks)}

    def _over_sources(self, parts: list[list[TaskScore]]) -> dict[str, Any]:
        means = [over_tasks([task.mean for task in group]) for group in parts]
        scores = _named(self.options.headline, over_sources(means))
        passed = [[task.passed for task in group if task.passed is not None] for group in parts]
        if all(passed) and (name := self._pass(self.tasks)):
            scores |= _named(name, over_sources([over_tasks(group) for group in passed]))
        votes = [_votes(group) for group in parts]
        if all(votes):
            scores |= _named(
                _average(self.tasks, "maj"), over_sources([over_tasks(group) for group in votes])
            )
        return scores | {"num_sources": len(parts), "num_tasks": len(self.tasks)}

    def _pass(self, tasks: list[TaskScore]) -> str:
        """Return the name of pass@k; "" where k differs, or is more than some tasks' attempts."""
        samples = {task.samples for task in tasks}
        ks = {self.options.choose_k(number) for number in samples}
        return f"pass@{max(ks)}" if len(ks) == 1 and max(ks) <= min(samples) else ""


def measurements_by_name(episodes: Iterable[Episode], prefix: str) -> dict[str, list[float]]:
    """Return the measurements whose names have a prefix, each of the episodes that have it."""
    measured: dict[str, list[float]] = defaultdict(list)
    for episode in episodes:
        for name, value in episode.metrics.items():
            if name.startswith(prefix):
                measured[name].append(value)
    return dict(sorted(measured.items()))


def _vote(group: Group, scores: list[float]) -> float | None:
    """Return whether the most frequent answer is right; None where nobody gives one.

    An attempt that was cut has no vote. The first attempt with the answer says whether it is right.
    """
    votes = [None if episode.is_truncated else read_vote(episode) for episode in group]
    elected = elect(votes)
    return None if elected is None else float(scores[votes.index(elected)] >= 1.0)


def _votes(tasks: list[TaskScore]) -> list[float]:
    """Return the vote's score of each task; [] where no task has one, or single attempts."""
    if all(task.voted is None for task in tasks) or max(task.samples for task in tasks) == 1:
        return []
    return [task.voted or 0.0 for task in tasks]


def _average(tasks: list[TaskScore], name: str = "avg") -> str:
    numbers = {task.samples for task in tasks}
    return f"{name}@{numbers.pop()}" if len(numbers) == 1 else f"{name}@n"


def _named(name: str, score: Score) -> dict[str, Any]:
    return {name: score.mean, f"{name}_margin": score.margin}
