"""Compares turns within groups and gives them group-relative credit.

Statistics run over *samples*: every turn is one (`count: turn`), or every agent of an episode is
one, the mean of its scores (`count: episode_agent`). All numbers are float64.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable
from hashlib import sha256
from typing import Literal

import numpy as np

from rolecall.core.credit import Amounts, Compared, Key
from rolecall.core.renamed import answer_old_names
from rolecall.core.types import Episode, Turn, group_by

Count = Literal["turn", "episode_agent"]
Level = Literal["task", "agent", "global"]
# What turns have in common that are compared: their task, their task and agent, or the step. A task
# that is sampled again while a group of it is carried over has two groups.
OF_A_TASK = ("task", "group")
KEYS: dict[Level, tuple[str, ...]] = {
    "task": OF_A_TASK, "agent": (*OF_A_TASK, "agent"), "global": (),
}  # fmt: skip
CreditedTurn = tuple[Episode, Turn]
Samples = dict[tuple[str, Hashable], float]  # (episode id, what else tells samples apart) -> score
# (samples of a group) -> a function from an episode id to what its scores are measured from
Baseline = Callable[[Samples], Callable[[str], float | None]]
OwnReward = Callable[[Episode, Turn], float]


def exact_mean(values: Collection[float]) -> float:
    """Return the mean; of equal numbers exactly that number, so that equal scores earn exactly 0.

    In float64 the sum of three times 0.1, divided by 3, is not 0.1.
    """
    lowest = min(values)
    return lowest if lowest == max(values) else float(np.mean(list(values)))


def sample_std(values: Collection[float]) -> float:
    """Return the standard deviation (n - 1 in its denominator); exactly 0 for one or equal values.

    The test is on equality: in float32 eight rewards of 0.9 would otherwise earn -0.0560 each.
    """
    if len(values) < 2 or max(values) == min(values):
        return 0.0
    return float(np.std(list(values), ddof=1))


def compare_scores(
    turns: list[Turn],
    made_of: list[Amounts],
    *,
    names: tuple[str, ...],
    sample: str,
    divide: bool = True,
    factor: float = 1.0,
) -> None:
    """Give each turn credit for its score less the mean of all, divided by their spread.

    A score is the sum of what it is made of. The credit is exactly 0 for one score or equal ones.
    `names` are what the turns have in common, as the first of them has it.
    """
    scores = [sum(amounts.values()) for amounts in made_of]
    mean, std, key = exact_mean(scores), sample_std(scores), describe_key(turns[0], names)
    for turn, score, amounts in zip(turns, scores, made_of, strict=True):
        term = Compared(
            score, mean, len(scores), amounts, key, sample,
            std=std if divide else None, factor=factor,
        )  # fmt: skip
        turn.give_credit(term)


def describe_key(turn: Turn, names: tuple[str, ...]) -> dict[str, str]:
    """Return what compared turns have in common, by name.

    `prompt` is a hash of the prompt's tokens, and `call` the call that a candidate answers.
    """
    key = {}
    for name in names:
        if name == "prompt":
            key[name] = sha256(prompt_key(turn)).hexdigest()[:8]
        elif name != "call":
            key[name] = str(getattr(turn, name))
        elif turn.candidate is not None:
            key[name] = turn.id.rpartition(".")[0]
    return key


def group_mean(samples: Samples) -> Callable[[str], float | None]:
    """Return the mean of all samples, [1, 0, 0] -> 1/3 for each; None if there is only one."""
    mean = exact_mean(samples.values()) if len(samples) > 1 else None
    return lambda episode: mean


def leave_one_out_mean(samples: Samples) -> Callable[[str], float | None]:
    """Return the mean of the other episodes' samples, [1, 0, 0] -> 0, .5, .5; None without any."""

    def baseline(episode: str) -> float | None:
        others = [value for (other, _), value in samples.items() if other != episode]
        return exact_mean(others) if others else None

    return baseline


def prompt_key(turn: Turn) -> bytes:
    """Return a key for `by` that compares turns whose prompt tokens are the same."""
    return np.ascontiguousarray(turn.ids[0]).tobytes()


def call_key(turn: Turn) -> Hashable:
    """Return a key for `by` that compares candidates with those of their own call only.

    Two attempts may show an agent the same and yet differ in what it does not see. None for a turn
    that is no candidate.
    """
    return None if turn.candidate is None else (turn.episode, turn.path[:-1])


def compare(
    said: list[CreditedTurn],
    *,
    mean: Level,
    std: Level | Literal["none"],
    count: Count,
    own: OwnReward,
    several: bool,
    baseline: Baseline = group_mean,
    limit: float = math.inf,
) -> None:
    """Give credit to turns: scores less the baseline of the turns of one `mean`, divided
    by the spread of the turns of one `std`.

    Where agents are compared with themselves (or only one is trained, `several` false) the
    statistics run over s_t, outcome plus own reward. Where one of them is pooled both run over
    outcomes, and an agent's own reward is added, less the mean of its other turns, so that a
    penalty of one agent moves no other's advantages. What the workflow paid for a turn is its
    outcome, not an own reward. `several` is of the team: who speaks in the
    step must not decide it. `baseline` None: a turn gets 0. Scores count within plus and minus
    `limit`.
    """
    turns = [turn for _, turn in said]
    pooled = several and not {mean, std} <= {"agent", "none"}
    score, sample, reward, outcomes = {}, {}, {}, {}
    for episode, turn in said:
        outcome = outcomes[turn.id] = episode.outcome(turn.agent) + (turn.paid or 0.0)
        reward[turn.id] = own(episode, turn) - (turn.paid or 0.0)
        earned = outcome + (0.0 if pooled else reward[turn.id])
        score[turn.id] = min(max(earned, -limit), limit)
        is_team = pooled and turn.paid is None
        owner = episode.owner(turn.agent) if is_team else turn.agent
        sample[turn.id] = episode.id, (turn.id if count == "turn" else owner)

    def list_samples(group: list[Turn]) -> Samples:
        scores_of = defaultdict(list)
        for turn in group:
            scores_of[sample[turn.id]].append(score[turn.id])
        return {name: exact_mean(scores) for name, scores in scores_of.items()}

    means: dict[str, tuple[float | None, int]] = {}
    stds: dict[str, tuple[float, int, Key]] = {}
    own_means: dict[str, float] = {}
    for group in group_by(turns, *KEYS[mean]):
        samples = list_samples(group)
        expected = baseline(samples)
        means |= {turn.id: (expected(sample[turn.id][0]), len(samples)) for turn in group}
    if std != "none":
        for group in group_by(turns, *KEYS[std]):
            samples, key = list_samples(group), describe_key(group[0], KEYS[std])
            deviation = sample_std(samples.values())
            stds |= {turn.id: (deviation, len(samples), key) for turn in group}
    for group in group_by(turns, *KEYS[mean], "agent") if pooled else []:
        usual = exact_mean([reward[turn.id] for turn in group])
        own_means |= {turn.id: usual for turn in group}
    for turn in turns:
        amounts = {"outcome": outcomes[turn.id]}
        if not pooled:
            amounts["own"] = reward[turn.id]
        spread, std_n, std_key = stds.get(turn.id, (None, None, None))
        term = Compared(
            score[turn.id],
            *means[turn.id],
            amounts,
            describe_key(turn, KEYS[mean]),
            count,
            baseline="leave_one_out" if baseline is leave_one_out_mean else "mean",
            std=spread,
            std_n=None if std == mean else std_n,
            std_key=None if std == mean else std_key,
            own=reward[turn.id] if pooled else None,
            own_mean=own_means.get(turn.id),
        )
        turn.reset_credit()
        turn.give_credit(term)


__getattr__ = answer_old_names(
    __name__,
    {
        "average": "group_mean",
        "left_out": "leave_one_out_mean",
        "mean_of": "exact_mean",
        "relative": "compare_scores",
        "std_of": "sample_std",
        "subtract_mean": "compare_scores",
    },
)
