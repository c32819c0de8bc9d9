"""Finds what a run's work takes, from how long its episodes and steps took.

The run is simulated with the lengths that it had, which says how many passes, rows, prompt tokens
and ends of episodes an engine had while an episode was under way; seconds of each are then fitted
to the episodes' measured seconds by least squares, none of them below zero.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from math import ceil
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rolecall_lab.simulate.costs import Costs, EngineCosts, LearnerCosts, PublishCosts, line
from rolecall_lab.simulate.records import MeasuredStep
from rolecall_lab.simulate.run import EpisodeRecord, Placement, Simulation
from rolecall_lab.simulate.workload import trained_tokens

TURNS = 4  # of fitting and simulating: the second already changes little
DECIMALS = 12  # of fitted seconds
UNLIKE = 1.5  # times as many tokens as in another step, from which an update's fixed part is known
Floats = NDArray[np.float64]


def steady(steps: Sequence[MeasuredStep], staleness: int) -> list[MeasuredStep]:
    """Return the steps in the middle; the last step alone where there are none.

    The first steps compile and fill, and the last ones drain.
    """
    first, last = 1 + staleness, len(steps) - staleness
    return list(steps[first:last]) or list(steps[-1:])


def calibrate(
    steps: Sequence[MeasuredStep], costs: Costs, placement: Placement, *, concurrency: int
) -> Costs:
    """Return the costs of a run that was placed so; `costs` has those that are known otherwise."""
    middle = steady(steps, placement.staleness)
    publish = PublishCosts(fixed_s=float(np.median([step.publish_s for step in middle])))
    costs = replace(
        costs,
        learner=fit_learner(middle, costs.learner, placement.ranks),
        publish=publish,
        engine=_first_guess(middle, costs.engine, placement.engines),
    )
    numbers = {step.number for step in middle}
    for _ in range(TURNS):
        simulated = Simulation(
            [step.groups for step in steps], costs, placement, concurrency=concurrency
        ).run()
        by_step: dict[int, list[EpisodeRecord]] = defaultdict(list)
        for episode in simulated.episodes:
            by_step[steps[episode.step - 1].number].append(episode)
        chosen = [(step, by_step[step.number]) for step in steps if step.number in numbers]
        costs = fit_sampling(chosen, costs, inside=placement.together)
        indices = [index for index, step in enumerate(steps) if step.number in numbers]
        if placement.staleness == 0:
            residuals = [steps[p].rollout_s - simulated.steps[p].rollout_s for p in indices]
            costs = replace(costs, step_s=max(0.0, costs.step_s + float(np.median(residuals))))
    return costs


def _first_guess(steps: Sequence[MeasuredStep], engine: EngineCosts, engines: int) -> EngineCosts:
    """Sampled tokens for each second of the longest episodes, half of it by passes."""
    tokens = sum(t.tokens for s in steps for g in s.groups for e in g for t in e.turns)
    longest = sum(max(step.walls.values(), default=step.rollout_s) for step in steps)
    passes = sum(max(sum(t.tokens for t in e.turns) for g in s.groups for e in g) for s in steps)
    half = max(longest, 1e-9) / 2
    return replace(engine, passes=line(half / passes, half * engines / tokens))


def fit_learner(steps: Sequence[MeasuredStep], learner: LearnerCosts, ranks: int) -> LearnerCosts:
    """Seconds of a token, and those that an update takes whatever its tokens are.

    Where all steps have nearly as many tokens, the second cannot be told from the first and is 0.
    """
    unit = replace(learner, token_s=1.0, fixed_s=0.0, exchange_s=0.0)
    tokens = np.array([unit.seconds(trained_tokens(step.groups), ranks) for step in steps])
    seconds = np.array([step.update_s for step in steps])
    if tokens.min() > 0 and tokens.max() > UNLIKE * tokens.min():
        token_s, fixed_s = non_negative(np.stack([tokens, np.ones_like(tokens)], 1), seconds)
        return replace(learner, token_s=float(token_s), fixed_s=float(fixed_s))
    each = seconds[tokens > 0] / tokens[tokens > 0]
    return replace(learner, token_s=float(np.median(each)) if len(each) else 0.0)


def fit_sampling(
    steps: Sequence[tuple[MeasuredStep, list[EpisodeRecord]]], costs: Costs, *, inside: bool
) -> Costs:
    """Fit the costs of sampling to measured seconds of episodes.

    Simulated episodes, the fastest first, stand beside the measured ones of the same places.
    `inside`: requests do not leave the process, and are on their way for no time.
    """
    work: list[tuple[float, ...]] = []
    seconds: list[float] = []
    for step, episodes in steps:
        ordered = sorted(episodes, key=lambda episode: episode.wall_s)
        # A run that has no seconds of episodes has those of whole rollouts.
        for share, wall in (step.walls or {100: step.rollout_s}).items():
            episode = ordered[max(0, ceil(len(ordered) * share / 100) - 1)]
            work.append((*episode.work, 0.0 if inside else episode.rounds))
            seconds.append(max(0.0, wall - episode.waited_s))
    weights = non_negative(np.array(work), np.array(seconds))
    # Without what is left of rounding: a request that is on its way for 1e-17 s misses a pass.
    pass_s, row_s, prompt_token_s, episode_s, request_s = (
        round(float(weight), DECIMALS) for weight in weights
    )
    engine = replace(
        costs.engine,
        passes=line(pass_s, row_s),
        prompt_token_s=prompt_token_s,
        episode_s=episode_s,
    )
    return replace(costs, engine=engine, request_s=request_s)


def non_negative(columns: Floats, wanted: Floats) -> Floats:
    """The weights x >= 0 with the least |columns x - wanted|: the best of all sets of columns.

    [[1, 1], [2, 1], [3, 1]] and [3, 5, 7] -> [2, 1]; with [1, 2, 2] the second is not needed.
    """
    number = columns.shape[1]
    scale = np.maximum(np.linalg.norm(columns, axis=0), 1e-30)
    best, least = np.zeros(number), float(wanted @ wanted)
    for size in range(1, number + 1):
        for chosen in combinations(range(number), size):
            subset = columns[:, chosen] / scale[list(chosen)]
            weights: Any = np.linalg.lstsq(subset, wanted, rcond=None)[0]
            error = float(np.sum((subset @ weights - wanted) ** 2))
            if weights.min() >= 0 and error < least:
                least, best = error, np.zeros(number)
                best[list(chosen)] = weights / scale[list(chosen)]
    return best
