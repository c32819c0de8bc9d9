"""Searches for how a number of GPUs is best split between engines and learners.

Whole rollouts and updates are first estimated for many splits; the few best are then simulated.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

from rolecall_lab.simulate.costs import Costs
from rolecall_lab.simulate.run import FIRST, Failure, Placement, StepRecord, simulate
from rolecall_lab.simulate.workload import Workload, trained_tokens

STALENESS = (0, 1, 4)
SHARES = 16  # splits that are looked at: this many shares of the GPUs, and all of them where few
TRIED = 2  # of the splits, those that are simulated in full
MEASURED_STEPS, MOST_STEPS = 2, 8
FILLING = 3  # steps until as many rollouts as may be are under way, and `staleness` more
ENOUGH = 1024  # episodes, in steps that are looked at: lengths differ from step to step
GIVEN_STEPS = 4  # for which a failure's cost is simulated
NOTHING = 1e-12  # seconds of steps that take none
ALONE = 0.5  # of a rollout, above which its longest episode is what it waits for


@dataclass(frozen=True, slots=True)
class Outcome:
    """One placement, simulated: means of its steady steps."""

    gpus: int
    placement: Placement
    step_s: float
    rollout_s: float
    update_s: float
    publish_s: float
    tokens_per_s: float
    engines_busy: float
    """Share of the time in which an engine has rows."""
    learners_busy: float
    bottleneck: str
    lost_share: float = 0.0
    """Of the time, to failures; 1 where nothing is left."""

    @property
    def real_step_s(self) -> float:
        """Seconds of a step, failures included."""
        return self.step_s / (1 - self.lost_share) if self.lost_share < 1 else math.inf

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for JSON; `real_step_s` is `None` where no step ever ends."""
        record = asdict(self)
        real = self.real_step_s
        return record | {"real_step_s": real if math.isfinite(real) else None}


def outcome(
    workload: Workload,
    costs: Costs,
    placement: Placement,
    *,
    gpus: int,
    num_steps: int | None = None,
) -> Outcome:
    """Simulate until steps are alike, and take the means of `num_steps`, by default of some."""
    if num_steps is None:
        episodes = workload.num_groups * workload.group_size
        num_steps = max(MEASURED_STEPS, min(MOST_STEPS, ENOUGH // episodes))
    # Rollouts that began together end together, so that steps are long and short in turn.
    turns = placement.staleness + 1
    num_steps = turns * math.ceil(num_steps / turns)
    before = placement.staleness + FILLING if placement.staleness else 1
    run = simulate(workload, costs, placement, steps=before + num_steps, before=before)
    indices = range(before, before + num_steps)
    steps = [run.steps[index] for index in indices]
    whole = max(sum(step.step_s for step in steps), NOTHING)
    update, publish = sum(s.update_s for s in steps), sum(s.publish_s for s in steps)
    engines_busy = sum(run.engine_busy[index] for index in indices) / len(steps)
    learners_busy = update / whole
    return Outcome(
        gpus=gpus,
        placement=placement,
        step_s=whole / len(steps),
        rollout_s=sum(step.rollout_s for step in steps) / len(steps),
        update_s=update / len(steps),
        publish_s=publish / len(steps),
        tokens_per_s=sum(step.sampled_tokens for step in steps) / whole,
        engines_busy=engines_busy,
        learners_busy=learners_busy,
        bottleneck=bottleneck(
            {
                "sampling": engines_busy if placement.staleness else 1 - (update + publish) / whole,
                "update": learners_busy,
                "publication": publish / whole,
            },
            steps,
            workload,
            costs,
        ),
    )


def bottleneck(
    shares: dict[str, float], steps: list[StepRecord], workload: Workload, costs: Costs
) -> str:
    """Return what has most of the time: sampling, update, publication or the longest episode.

    Without staleness they follow one another and add up to a step; with it they go on at the same
    time, and what is busiest holds the others up. It is the longest episode where that one alone,
    on an engine of its own, would take more than half as long as it takes: more engines would
    hardly help.
    """
    most = max(shares, key=lambda name: shares[name])
    if most != "sampling":
        return most
    alone = median(longest_episode_s(workload, costs, step) for step in range(len(steps)))
    rollout = sum(step.longest_s for step in steps) / len(steps)
    return "longest episode" if alone > ALONE * rollout else most


def longest_episode_s(workload: Workload, costs: Costs, step: int) -> float:
    """Seconds of a step's longest episode on an engine that has nothing else to do."""
    engine = costs.engine

    def seconds(tokens: int, prompt: int) -> float:
        return tokens * engine.pass_s(1) + prompt * engine.prompt_token_s

    return max(
        sum(
            max(seconds(turn.tokens, turn.own + turn.shared) for turn in together)
            for together in episode.rounds
        )
        + costs.environment_s * (len(episode.rounds) - 1)
        + costs.request_s * len(episode.rounds)
        for group in workload.step(FIRST + step)
        for episode in group
    )


def splits(gpus: int, costs: Costs) -> list[Placement]:
    """Ways to place engines and ranks on GPUs of their own, from few engines to many."""
    each, least = costs.engine.gpus, costs.learner.least_ranks
    most = (gpus - least) // each
    step = max(1, math.ceil(gpus / each / SHARES))
    numbers = sorted({1, *range(step, most + 1, step), most})
    return [Placement(n, gpus - n * each) for n in numbers if 1 <= n <= most]


def share_gpus(gpus: int, costs: Costs) -> Placement | None:
    """Engines and ranks that take turns on all GPUs; None where they do not fit."""
    engines = gpus // costs.engine.gpus
    if engines < 1 or gpus < costs.learner.least_ranks:
        return None
    return Placement(engines, gpus, together=True)


class Search:
    """Keeps what rollouts take, since many sizes ask for the same."""

    def __init__(self, workload: Workload, costs: Costs) -> None:
        self.workload, self.costs = workload, costs
        self._rollouts: dict[int, float] = {}
        self._tokens = trained_tokens(workload.step(FIRST))

    def best(self, gpus: int, staleness: int) -> Outcome | None:
        """Return the best split of these GPUs, engines and learners apart; None where none fits."""
        offered = splits(gpus, self.costs)
        if not offered:
            return None
        ordered = sorted(offered, key=lambda placement: self._estimate(placement, staleness))
        tried = [replace(placement, staleness=staleness) for placement in ordered[:TRIED]]
        outcomes = [outcome(self.workload, self.costs, placement, gpus=gpus) for placement in tried]
        return min(outcomes, key=lambda one: one.step_s)

    def taking_turns(self, gpus: int) -> Outcome | None:
        placement = share_gpus(gpus, self.costs)
        if placement is None:
            return None
        return outcome(self.workload, self.costs, placement, gpus=gpus)

    def _estimate(self, placement: Placement, staleness: int) -> float:
        update = self.costs.learner.seconds(self._tokens, placement.ranks)
        rollout = self._rollout_s(placement.engines)
        both = max(rollout, update) if staleness else rollout + update
        return both + self.costs.publish.seconds

    def _rollout_s(self, engines: int) -> float:
        """Between powers of two it is a straight line of logarithms."""
        below = 2 ** int(math.log2(engines))
        if below == engines:
            return self._simulated(engines)
        low, high = self._simulated(below), self._simulated(2 * below)
        fraction = math.log2(engines / below)
        return float(low ** (1 - fraction) * high**fraction)

    def _simulated(self, engines: int) -> float:
        if engines not in self._rollouts:
            run = simulate(self.workload, self.costs, Placement(engines, 1), steps=1)
            self._rollouts[engines] = max(1e-9, run.steps[0].rollout_s)
        return self._rollouts[engines]


def add_failures(found: Outcome, workload: Workload, costs: Costs, *, mtbf_hours: float) -> Outcome:
    """Add to an outcome what is lost where one GPU fails once in `mtbf_hours` in the mean.

    One failure of each kind is simulated in the middle of a run, a learner's at the middle between
    two checkpoints; what it costs is taken as often as GPUs fail.
    """
    placement = found.placement
    steps = GIVEN_STEPS + placement.staleness

    def whole(*failures: Failure, unsaved: int = 0) -> float:
        run = simulate(workload, costs, placement, steps=steps, failures=failures, unsaved=unsaved)
        return run.whole_s

    undisturbed = whole()
    middle = undisturbed / 2
    unsaved = max(0, (costs.save_every - 1) // 2 - steps // 2) % costs.save_every
    learner_s = max(0.0, whole(Failure(middle, "learner"), unsaved=unsaved) - undisturbed)
    share = placement.ranks * learner_s
    if not placement.together:
        # It is away for longer than the simulated steps may take: its share of sampling is missed.
        away_s = costs.restart_s / placement.engines
        engine_s = max(away_s, whole(Failure(middle, "engine")) - undisturbed)
        share += placement.engines * costs.engine.gpus * engine_s
    lost = min(1.0, share / (mtbf_hours * 3600))
    most = lost / (1 - lost) * found.step_s if lost < 1 else math.inf
    waits = max(found.rollout_s, found.update_s, found.publish_s)
    why = "faults" if most > waits else found.bottleneck
    return replace(found, lost_share=lost, bottleneck=why)
