"""Says why a step has nothing to train on, with shares, samples and what to change."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import fmean
from typing import Literal

from rolecall.agents.agent import Agent
from rolecall.core.interfaces.environment import Environment, Suggestions
from rolecall.core.json_types import Record
from rolecall.core.types import Episode, Group, Turn

Case = Literal[
    "signal", "failed", "cut off", "unreadable", "all wrong", "all right", "easy or hopeless",
    "equal partial rewards",
]  # fmt: skip
KEPT = 0.95  # share of the turns that should end within max_tokens
MANY = 0.5  # share of the wrong answers that a cause must have to be named
NUM_SAMPLES = 3
SAMPLE_CHARS = 200
ABOUT: dict[Case, str] = {
    "signal": "some attempts at a task are worth more than others",
    "failed": "no attempt could be scored",
    "cut off": "answers are cut by max_tokens before they end",
    "unreadable": "answers lack the form that is read",
    "all wrong": "no attempt is right",
    "all right": "every attempt is right",
    "easy or hopeless": "all attempts at a task are right, or all are wrong",
    "equal partial rewards": "all attempts at a task earn the same part of the reward",
}


@dataclass(frozen=True, slots=True)
class Sample:
    """The end of what an agent said, and the score of its episode."""

    task: str
    agent: str
    text: str
    finish: str
    is_read: bool
    score: float


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Says which case the attempts of a step are."""

    case: Case
    tasks: int
    attempts: int
    shares: dict[str, float]  # of the attempts
    advice: list[str] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Return the diagnosis as lines for a terminal."""
        shares = ", ".join(f"{name} {value:.2f}" for name, value in self.shares.items())
        head = "There is a signal" if self.case == "signal" else f"No signal: {self.case}"
        lines = [
            f"{head}: {ABOUT[self.case]} ({self.attempts} attempts at {self.tasks} tasks; {shares})"
        ]
        lines += [f"  try: {one}" for one in self.advice]
        for sample in self.samples:
            end = "cut" if sample.finish == "length" else "ended"
            form = "" if sample.is_read else ", not readable"
            lines.append(
                f"  {sample.agent} on {sample.task} ({end}{form}, score {sample.score:g}): "
                f"{sample.text}"
            )
        return lines

    def summary(self) -> str:
        """Return the case, and what to try first, in one line."""
        first = f"; try {self.advice[0]}" if self.advice else ""
        return f"{self.case.capitalize()}: {ABOUT[self.case]}{first}"

    def record(self) -> Record:
        """Return the diagnosis as plain data."""
        return asdict(self)


def diagnose(
    groups: Sequence[Group], agents: Mapping[str, Agent], environment: Environment
) -> Diagnosis:
    """Diagnose the groups of a step, each the attempts at one task."""
    episodes = [episode for group in groups for episode in group]
    trained = {name for name, agent in agents.items() if agent.trainable}
    turns = [
        (episode, turn) for episode in episodes for turn in episode.turns if turn.agent in trained
    ]
    if not episodes:
        return Diagnosis("failed", len(groups), 0, {})
    shares = _shares(episodes, [turn for _, turn in turns])
    case = _case(groups, shares, trained)
    return Diagnosis(
        case,
        len(groups),
        len(episodes),
        shares,
        _advise(case, shares, [turn for _, turn in turns], agents, environment),
        _samples(turns),
    )


def group_by_task(episodes: Iterable[Episode]) -> list[Group]:
    """Return the episodes that ended without an error, grouped by their tasks."""
    groups: dict[str, Group] = {}
    for episode in episodes:
        if episode.error is None:
            groups.setdefault(episode.task.id, []).append(episode)
    return list(groups.values())


def _case(groups: Sequence[Group], shares: Mapping[str, float], trained: Collection[str]) -> Case:
    if any(_differs(group, trained) for group in groups):
        return "signal"
    scores = [fmean(e.headline or 0.0 for e in group) for group in groups if group]
    if all(score >= 1.0 for score in scores):
        return "all right"
    if all(score <= 0.0 for score in scores):
        if shares["cut off"] >= MANY:
            return "cut off"
        return "unreadable" if shares["not readable"] >= MANY else "all wrong"
    if all(score in (0.0, 1.0) for score in scores):
        return "easy or hopeless"
    return "equal partial rewards"


def _differs(group: Group, trained: Collection[str]) -> bool:
    """Return whether turns of one trained agent at one task are worth different amounts."""
    totals: dict[str, set[float]] = {name: set() for name in trained}
    for episode in group:
        for turn in episode.turns:
            if turn.agent in totals:
                totals[turn.agent].add(round(episode.total(turn), 9))
    return any(len(values) > 1 for values in totals.values())


def _shares(episodes: list[Episode], turns: list[Turn]) -> dict[str, float]:
    """Return shares of the attempts that are right, and of the turns that are cut or unreadable."""
    shares = {"right": fmean((e.headline or 0.0) >= 1.0 for e in episodes)}
    lenient = [e.metrics["answer/lenient"] for e in episodes if "answer/lenient" in e.metrics]
    if lenient:
        shares["right in any form"] = fmean(lenient)
    shares["cut off"] = fmean(t.finish == "length" for t in turns) if turns else 0.0
    unread = [not t.valid and t.finish != "length" for t in turns]
    shares["not readable"] = fmean(unread) if unread else 0.0
    return shares


def _advise(
    case: Case,
    shares: Mapping[str, float],
    turns: list[Turn],
    agents: Mapping[str, Agent],
    environment: Environment,
) -> list[str]:
    lines: list[str] = []
    suggestions = getattr(environment, "suggestions", Suggestions())
    is_hidden = shares.get("right in any form", 0.0) > shares["right"]
    if shares["cut off"] > 1 - KEPT:
        lines += _suggest_lengths(turns, agents)
    if case in ("unreadable", "all wrong", "cut off"):
        if is_hidden and suggestions.lenient:
            lines.append(
                f"{suggestions.lenient} ({shares['right in any form']:.2f} of the attempts are "
                "right in another form)"
            )
        if case == "unreadable":
            lines.append("rewards.format=0.2 (pays an agent for turns in the form that is read)")
        if hasattr(environment, "demonstrate"):
            lines.append("trainer.warm_start=10 (ten steps of SFT on demonstrations first)")
    if case == "all wrong":
        lines.append(f"{suggestions.easier or 'easier tasks'} (no task is solved yet)")
    if case == "all right":
        lines.append(f"{suggestions.harder or 'harder tasks'} (every task is solved already)")
    if case == "easy or hopeless":
        lines.append("rollout.curriculum={} (draws tasks that are sometimes passed more often)")
        lines.append("algorithm=dapo (plays other tasks for those whose attempts are all alike)")
        lines.append("a larger rollout.group_size")
    if case == "equal partial rewards":
        lines.append("a reward that tells attempts at one task apart; look at `rolecall show`")
    return lines


def choose_max_tokens(limit: int, tokens_per_end: float) -> int:
    """Return the max_tokens within which nearly all turns would end, more than the `limit`.

    How long a cut turn would have been is not known. Turns are taken to end at a constant rate a
    token: the number that ended, divided by all tokens (the exponential law with censored
    lengths). Then all but 5 % end within ln(20) / rate tokens.

    tokens_per_end: all sampled tokens, those of cut turns too, by the number of turns that ended.
    """
    return max(limit + 1, math.ceil(tokens_per_end * -math.log(1 - KEPT)))


def _suggest_lengths(turns: list[Turn], agents: Mapping[str, Agent]) -> list[str]:
    """Suggest max_tokens for each agent of which many turns are cut."""
    by_agent: dict[str, list[Turn]] = defaultdict(list)
    for turn in turns:
        if turn.tokens is not None:
            by_agent[turn.agent].append(turn)
    lines = []
    for name, own in sorted(by_agent.items()):
        cut = fmean(turn.finish == "length" for turn in own)
        if cut <= 1 - KEPT:
            continue
        limit = agents[name].sampling.max_tokens
        ended = sum(turn.finish != "length" for turn in own)
        if not ended:
            lines.append(
                f"team.{name}.sampling.max_tokens={4 * limit} (none of {len(own)} turns ended "
                f"within {limit}), or a system prompt that asks for short answers"
            )
            continue
        tokens = sum(len(turn.tokens) for turn in own if turn.tokens is not None)
        enough = choose_max_tokens(limit, tokens / ended)
        lines.append(
            f"team.{name}.sampling.max_tokens={enough} (would keep about 95 % of the turns; "
            f"{cut:.0%} are cut at {limit})"
        )
    return lines


def _samples(turns: list[tuple[Episode, Turn]]) -> list[Sample]:
    """Return the ends of turns of different tasks, those that are not readable first."""
    chosen: dict[str, Sample] = {}
    for episode, turn in sorted(turns, key=lambda pair: pair[1].valid):
        text = " ".join(turn.text.split())
        shown = text if len(text) <= SAMPLE_CHARS else f"...{text[-SAMPLE_CHARS:]}"
        sample = Sample(
            episode.task.id, turn.agent, shown or "(nothing)", turn.finish, turn.valid,
            episode.headline or 0.0,
        )  # fmt: skip
        chosen.setdefault(episode.task.id, sample)
    return list(chosen.values())[:NUM_SAMPLES]
