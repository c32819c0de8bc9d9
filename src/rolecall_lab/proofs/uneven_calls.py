"""Measures whose scores a sub-agent is compared with when rollouts call it unequally often.

M-GRPO (2511.13288) repeats or drops calls at random until each rollout has equally many; ours
weighs them. Both measure a call from the mean over rollouts of each one's own mean, the first with
luck; counting every call instead measures it mostly from rollouts that called often.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rolecall.algorithms.mgrpo import MGrpo
from rolecall.core.types import Episode, Task, Turn
from rolecall_lab.proofs import Claim
from rolecall_lab.proofs.tabular import Doubles, agent_turns, first_advantages, pack_turns

NUM_ROLLOUTS, MOST_CALLS = 1000, 8
DRAWN = 4  # calls of a rollout that the paper's rule keeps
NUM_DRAWS = 30
PLANNER, WORKER = "planner", "worker"


def rollouts(scores: list[Doubles]) -> list[Episode]:
    """Attempts at one task: a planner's turn, and one call of the worker for each score."""
    return [_rollout(number, rollout_scores) for number, rollout_scores in enumerate(scores)]


def _rollout(number: int, scores: Doubles) -> Episode:
    name = str(number)
    turns = [_turn(name, PLANNER, 0, score=float(number % 2))]
    for call, score in enumerate(scores.tolist(), start=1):
        turns.append(_turn(name, WORKER, call, score=score))
        turns[-1].parents = (turns[0].id,)
    return Episode(name, Task("x", ""), number, number, turns)


def _turn(episode: str, agent: str, call: int, *, score: float) -> Turn:
    return Turn(
        id=f"{episode}/{call}",
        task="x",
        episode=episode,
        agent=agent,
        policy=agent,
        path=(call,),
        prompt=np.zeros(1, dtype=np.int32),
        tokens=np.zeros(1, dtype=np.int32),
        logprobs=np.zeros(1, dtype=np.float32),
        rewards={"own": score},
    )


def draw_scores(*, seed: int) -> list[Doubles]:
    """1 to 8 calls with scores N(q, 1) of rollouts whose quality q falls with their calls."""
    random = np.random.default_rng(seed)
    calls = random.integers(1, MOST_CALLS + 1, size=NUM_ROLLOUTS)
    return [random.normal(loc=(4.5 - d) / 4, size=d) for d in calls.tolist()]


def zero_score(algorithm: MGrpo, episodes: list[Episode]) -> float:
    """Return the score at which an advantage is 0: advantages are a line through it."""
    algorithm.credit(episodes)
    turns = agent_turns(episodes, WORKER)
    return float(np.polyfit(first_advantages(turns), [turn.score for turn in turns], 1)[1])


def align_scores(scores: list[Doubles], random: np.random.Generator) -> float:
    """The mean by the paper's rule: `DRAWN` calls of each rollout, some repeated or dropped."""
    kept = [
        random.choice(rollout_scores, DRAWN, replace=False)
        if len(rollout_scores) >= DRAWN
        else np.concatenate(
            [rollout_scores, random.choice(rollout_scores, DRAWN - len(rollout_scores))]
        )
        for rollout_scores in scores
    ]
    return float(np.mean(kept))


def shares(algorithm: MGrpo, episodes: list[Episode]) -> Doubles:
    """The share of each rollout in the weights of a packed batch of the worker: [rollouts]."""
    algorithm.credit(episodes)
    turns = agent_turns(episodes, WORKER)
    for turn in turns:
        turn.advantages = np.ones(1, dtype=np.float32)  # none is left out
    (batch,) = pack_turns(turns, algorithm)
    sums = np.bincount(batch.turn, batch.weight * batch.mask)
    weight = dict(zip(batch.turn_ids, sums, strict=True))
    totals = np.bincount([int(t.episode) for t in turns], [weight[t.id] for t in turns])
    return np.asarray(totals / totals.sum(), dtype=np.float64)


def claims() -> Iterator[Claim]:
    """Means over all rollouts, then what each of them weighs, then who does not notice."""
    scores = draw_scores(seed=0)
    episodes = rollouts(scores)
    per_rollout = float(np.mean([rollout_scores.mean() for rollout_scores in scores]))
    per_call = float(np.concatenate(scores).mean())
    what = f"{NUM_ROLLOUTS} rollouts of 1 to {MOST_CALLS} calls, worse the more they are: "
    baseline = zero_score(MGrpo(), episodes)
    yield Claim(
        what + "M-GRPO's weights measure a call from the mean over rollouts of their own means.",
        f"{per_rollout:.6f} +- 1e-6",
        f"{baseline:.6f}",
        abs(baseline - per_rollout) <= 1e-6,
    )
    baseline = zero_score(MGrpo(calls=None), episodes)
    yield Claim(
        what + "with each call a sample of its own it is the mean of all calls, which is another.",
        f"{per_call:.6f} +- 1e-6, and not {per_rollout:.6f}",
        f"{baseline:.6f}",
        abs(baseline - per_call) <= 1e-6 and abs(baseline - per_rollout) > 0.1,
    )
    yield _by_luck(what, scores, per_rollout)
    weighed, counted = shares(MGrpo(), episodes), shares(MGrpo(calls=None), episodes)
    yield Claim(
        what + "the largest rollout's share in the loss beside the smallest one's, weighed and "
        "call by call.",
        f"1 and {MOST_CALLS}",
        f"{weighed.max() / weighed.min():.6f} and {counted.max() / counted.min():.6f}",
        bool(abs(weighed.max() / weighed.min() - 1) < 1e-5)
        and bool(abs(counted.max() / counted.min() - MOST_CALLS) < 1e-5),
    )
    once = rollouts([rollout_scores[:1] for rollout_scores in scores])
    yield Claim(
        what + "advantages of the planner where every rollout called once instead.",
        "the same bits",
        "the same bits" if _planner(episodes) == _planner(once) else "others",
        _planner(episodes) == _planner(once),
    )


def _by_luck(what: str, scores: list[Doubles], per_rollout: float) -> Claim:
    """The paper's draws scatter around what the weights give at once."""
    random = np.random.default_rng(1)
    gaps = np.array([align_scores(scores, random) - per_rollout for _ in range(NUM_DRAWS)])
    error = gaps.std(ddof=1) / np.sqrt(NUM_DRAWS)
    return Claim(
        what
        + f"{NUM_DRAWS} draws of {DRAWN} calls a rollout, as the paper has it, less that mean.",
        f"0 within 3 standard errors ({3 * error:.4f}); each draw is off by about {gaps.std():.4f}",
        f"{gaps.mean():.5f}",
        bool(abs(gaps.mean()) <= 3 * error),
    )


def _planner(episodes: list[Episode]) -> list[float]:
    MGrpo().credit(episodes)
    return first_advantages(agent_turns(episodes, PLANNER)).tolist()
