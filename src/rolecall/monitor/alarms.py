"""Raises an alarm where an agent stops working, or where shared weights serve one role alone.

Both show in the metrics of the steps before the team's score falls. All numbers are means over a
window of steps, because the tasks of one step differ from those of the next.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Literal

from rolecall.core.json_types import Record

WINDOW = 5  # steps
LAZY = {"tokens": 0.6, "gain": 0.25, "signal": 0.25}  # share of its best below which work is lazy
KEPT = 0.75  # least share of its best that a teammate keeps meanwhile
SURE, LIKELY = 4.0, 2.0  # standard errors

WORDS = {
    "tokens": ("writes less and less", "tokens an episode"),
    "gain": ("is of less and less use", "of the score gained by its turns"),
    "signal": ("learns less and less", "of its turns with an advantage"),
}


@dataclass(frozen=True, slots=True)
class Alarm:
    """Says what is wrong with an agent, with the numbers and the key to change."""

    kind: Literal["lazy", "captured"]
    agent: str
    step: int  # in which it was raised
    since: int  # the last step in which all was well
    text: str


@dataclass(slots=True)
class Trace:
    """The newest steps of a measurement, its best window, and how much it differs by chance."""

    window: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    best: float = 0.0
    best_step: int = 0
    squares: float = 0.0  # of differences between one step and the next
    steps: int = 0

    def add(self, step: int, value: float) -> None:
        self.squares += (value - self.window[-1]) ** 2 if self.window else 0.0
        self.window.append(value)
        self.steps += 1
        if self.steps == WINDOW or (self.steps > WINDOW and self.mean > self.best):
            self.best, self.best_step = self.mean, step

    @property
    def mean(self) -> float:
        return fmean(self.window)

    @property
    def error(self) -> float:
        """The standard error of the difference between two windows."""
        return math.sqrt(self.squares / max(1, self.steps - 1) / WINDOW)

    def fell(self, errors: float) -> bool:
        """Return whether the newest window is below the best one by more than chance."""
        return self.steps > WINDOW and self.best - self.mean > errors * self.error


class AlarmWatch:
    """Reads the metrics of one step after the other."""

    def __init__(self, policies: Mapping[str, str]) -> None:
        """Watch the trained agents; `policies` maps each to its policy."""
        self.policies = policies
        names = (*LAZY, "reward", "grad_norm", "alignment")
        self.traces = {agent: {name: Trace() for name in names} for agent in policies}
        self.raised: set[tuple[str, str]] = set()

    def after_step(self, record: Record) -> list[Alarm]:
        """Return the alarms that this step raises: each kind once for an agent."""
        step = record["step"]
        for agent, traces in self.traces.items():
            for name, value in self._measure(record, agent).items():
                traces[name].add(step, value)
        alarms = []
        for agent in self.policies:
            for alarm in (self._check_work(agent, step), self._check_capture(agent, step)):
                if alarm is not None and (alarm.kind, agent) not in self.raised:
                    self.raised.add((alarm.kind, agent))
                    alarms.append(alarm)
        return alarms

    def _measure(self, record: Record, agent: str) -> dict[str, float]:
        """Return what a step says of an agent; answers that were cut count as no work."""
        area = f"agent/{agent}"
        keys = {
            "reward": f"{area}/reward",
            "grad_norm": f"{area}/grad_norm",
            "gain": f"algorithm/gain/{agent}",
        }
        values = {name: record[key] for name, key in keys.items() if key in record}
        if record.get("rollout/episodes"):
            ended = 1.0 - record.get(f"{area}/truncated", 0.0)
            values["tokens"] = record.get(f"{area}/tokens", 0.0) * ended
        if (silent := record.get(f"{area}/zero_signal")) is not None:
            values["signal"] = 1.0 - silent
        alignment = measure_alignment(record, self.policies[agent], agent, self._sharing(agent))
        return values if alignment is None else {**values, "alignment": alignment}

    def _sharing(self, agent: str) -> list[str]:
        policy = self.policies[agent]
        return [other for other in self.policies if self.policies[other] == policy]

    def _check_work(self, agent: str, step: int) -> Alarm | None:
        """Raise an alarm where a measure of an agent's work falls, and a teammate's stays."""
        for name, least in LAZY.items():
            trace = self.traces[agent][name]
            if not trace.fell(SURE) or trace.mean > least * trace.best:
                continue
            keep = [other for other in self.policies if other != agent and self._keeps(other, name)]
            has_learned = name == "signal" and not self.traces[agent]["reward"].fell(LIKELY)
            if not keep or has_learned:
                continue
            verb, unit = WORDS[name]
            text = (
                f"agent {agent} {verb}: {trace.best:.3g} {unit} up to step {trace.best_step}, "
                f"{trace.mean:.3g} up to step {step}, while {', '.join(keep)} kept on. Look at "
                f"what rewards pay {agent} when it does nothing; algorithm=counterfactual pays a "
                "turn by what it adds"
            )
            return Alarm("lazy", agent, step, trace.best_step, text)
        return None

    def _keeps(self, agent: str, name: str) -> bool:
        trace = self.traces[agent][name]
        return trace.best > 0 and trace.steps > WINDOW and trace.mean >= KEPT * trace.best

    def _check_capture(self, agent: str, step: int) -> Alarm | None:
        """Raise an alarm where updates work against an agent, which earns less than before."""
        alignment, reward = self.traces[agent]["alignment"], self.traces[agent]["reward"]
        opposed = alignment.steps >= WINDOW and alignment.mean < -LIKELY * alignment.error
        if not opposed or not reward.fell(0.0):
            return None
        sharing = self._sharing(agent)
        norms = {other: sum(self.traces[other]["grad_norm"].window) for other in sharing}
        top = max(norms, key=lambda other: norms[other])
        text = (
            f"agent {agent} loses the weights of policy {self.policies[agent]} to {top}, which has "
            f"{norms[top] / sum(norms.values()):.0%} of the gradient: updates point against its "
            f"own gradient (cosine {alignment.mean:.2f} up to step {step}), and its reward fell "
            f"from {reward.best:.3g} up to step {reward.best_step} to {reward.mean:.3g}. Name "
            f"weights of its own for it in policies and in team.{agent}.policy"
        )
        return Alarm("captured", agent, step, reward.best_step, text)


def measure_alignment(
    record: Record, policy: str, agent: str, sharing: Sequence[str]
) -> float | None:
    """Return the cosine between the gradient of shared weights and what one agent adds to it.

    It follows from their norms: below 0 the update works against the agent. Of more than two agents
    every pair counts as equally aligned.
    """
    keys = [f"policy/{policy}/grad_norm", *(f"agent/{other}/grad_norm" for other in sharing)]
    if len(sharing) < 2 or any(key not in record for key in keys):
        return None
    whole, *norms = (record[key] for key in keys)
    own = record[f"agent/{agent}/grad_norm"]
    squares = sum(norm**2 for norm in norms)
    pairs = sum(norms) ** 2 - squares
    if not whole * own * pairs:
        return None
    cosine = (whole**2 - squares) / pairs
    return (own + cosine * (sum(norms) - own)) / whole


def find_alarms(records: Iterable[Record], policies: Mapping[str, str]) -> list[Alarm]:
    """Return the alarms of a run, in the order of its steps; `policies` of the trained agents."""
    watch = AlarmWatch(policies)
    return [
        alarm
        for record in records
        if record.get("kind", "step") == "step"
        for alarm in watch.after_step(record)
    ]


def trained_policies(config: Record) -> dict[str, str]:
    """Return the policies of the agents that a run's config trains, by agent."""
    return {name: agent["policy"] for name, agent in config["team"].items() if agent["trainable"]}
