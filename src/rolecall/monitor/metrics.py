"""Computes a step's flat `area/name` numbers from its episodes and updates.

Means are over episodes for rewards and over turns for the rest, unless a name says otherwise.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from statistics import fmean

import numpy as np

from rolecall.core.interfaces.learner import Update
from rolecall.core.json_types import Record
from rolecall.core.types import Episode, Turn
from rolecall.rollout.episodes import Rollout
from rolecall.rollout.evaluation_summary import measurements_by_name


def is_dropped(turn: Turn) -> bool:
    """Return whether a turn is out of everything because its coach gave it no score."""
    return bool(turn.coach.error) and not turn.trained


def coach_metrics(turns: Iterable[Turn]) -> dict[str, float]:
    """Return {"coach/solver/score": .. in 0..10, "coach/solver/errors": .., "coach/tokens": ..,
    "coach/cost_usd": .., "coach/latency_s": mean of those that were asked}; {} without a coach.
    """
    scores: defaultdict[str, list[float]] = defaultdict(list)
    errors: defaultdict[str, int] = defaultdict(int)
    usages = []
    for turn in turns:
        if (note := turn.coach.note) is not None:
            scores[turn.agent].append(note.final.score)
            usages += [one.usage for one in (note, note.hindsight) if one]
        errors[turn.agent] += bool(turn.coach.error)
    metrics: dict[str, float] = {}
    for agent in sorted(errors):
        if scores[agent]:
            metrics[f"coach/{agent}/score"] = fmean(scores[agent])
        if scores[agent] or errors[agent]:
            metrics[f"coach/{agent}/errors"] = errors[agent]
    paid = [usage for usage in usages if usage["tries"]]
    if paid:
        metrics["coach/tokens"] = sum(u["prompt_tokens"] + u["completion_tokens"] for u in paid)
        metrics["coach/cost_usd"] = sum(usage["cost_usd"] for usage in paid)
        metrics["coach/latency_s"] = fmean(usage["latency_s"] for usage in paid)
    return metrics


WALL_SHARES = (5, 10, 25, 50, 75, 90, 95, 100)  # percent of a step's episodes, the fastest first


def evaluation_metrics(found: Record, area: str = "evaluation") -> dict[str, float]:
    """Flatten an evaluation: {"avg@8": 0.5, "by_source": {"gsm8k": {"avg@8": 0.25}}} ->
    {"evaluation/avg@8": 0.5, "evaluation/by_source/gsm8k/avg@8": 0.25}.
    """
    flat: dict[str, float] = {}
    for name, value in found.items():
        inner = isinstance(value, dict)
        if value is None:  # the margin of a single task
            continue
        flat |= evaluation_metrics(value, f"{area}/{name}") if inner else {f"{area}/{name}": value}
    return flat


def rollout_metrics(rollout: Rollout, *, is_data: bool = False) -> dict[str, float]:
    """Return reward and score of a rollout, and the metrics of each agent.

    `is_data`: the episodes are rows of `rollout.data`, which nobody scored: they have no score, and
    their rewards only say which row is preferred.
    """
    episodes = rollout.episodes
    metrics: dict[str, float] = {
        "rollout/episodes": len(episodes),
        "rollout/dropped_groups": rollout.num_dropped,
        "rollout/filtered_groups": rollout.num_filtered,
        "rollout/stale_groups": rollout.num_stale,
        "rollout/stale_turns": rollout.num_stale_turns,
        "rollout/cut_episodes": rollout.num_cut,
        "rollout/carried_groups": rollout.num_carried,
        "rollout/failures": sum(rollout.failures.values()),
        "rollout/lost_episodes": sum(e.error is not None for e in rollout.unused),
    }
    for name, count in rollout.failures.items():
        metrics[f"failures/{name}"] = count
    for episode in episodes:
        for name, value in episode.metrics.items():
            area, _, event = name.partition("/")
            if area == "count":
                metrics[f"rollout/{event}"] = metrics.get(f"rollout/{event}", 0.0) + value
    for area in ("reward/", "answer/", "tree/", "judge/", "submission/"):
        metrics |= _mean_by_name(episodes, area)
    if episodes and not is_data:
        metrics["score"] = _mean(e.headline or 0.0 for e in episodes)
    for family in sorted({e.task.family for e in episodes} - {""}):
        mine = [e for e in episodes if e.task.family == family]
        metrics[f"family/{family}/episodes"] = len(mine)
        if not is_data:
            metrics[f"family/{family}/score"] = _mean(e.headline or 0.0 for e in mine)
    turns: dict[str, list[tuple[Episode, Turn]]] = defaultdict(list)
    for episode in episodes:
        for turn in episode.turns:
            turns[turn.agent].append((episode, turn))
    for agent, credited in sorted(turns.items()):
        metrics |= {
            f"agent/{agent}/{name}": value
            for name, value in _of_agent(
                credited, num_episodes=len(episodes), is_data=is_data
            ).items()
        }
    metrics |= _of_policies(credited for each in turns.values() for _, credited in each)
    return metrics | _of_usage(episodes) | coach_metrics(t for e in episodes for t in e.turns)


def wall_metrics(episodes: list[Episode]) -> dict[str, float]:
    """Return `time/episode_p50_s` and `time/episode_p100_s`: the median and the longest time of an
    episode.

    Seconds from an episode's start to its score; `rolecall simulate` learns from them what a
    decoding pass takes.
    """
    walls = sorted(e.metrics["wall_s"] for e in episodes if "wall_s" in e.metrics)
    if not walls:
        return {}
    return {
        f"time/episode_p{share}_s": walls[max(0, math.ceil(len(walls) * share / 100) - 1)]
        for share in WALL_SHARES
    }


def _of_usage(episodes: list[Episode]) -> dict[str, float]:
    """Return what a paid server's answers took: `policy/judge/usd`,
    `policy/judge/prompt_tokens`."""
    usage: dict[str, float] = defaultdict(float)
    for episode in episodes:
        for turn in episode.turns:
            for name, value in (turn.usage or {}).items():
                usage[f"policy/{turn.policy}/{name}"] += value
    return dict(sorted(usage.items()))


def _mean_by_name(episodes: list[Episode], prefix: str) -> dict[str, float]:
    """Return the means of measurements with a prefix, over the episodes that have them.

    `reward/correct/team` is what a reward function paid, unweighted; `answer/lenient` the share of
    right answers in any form.
    """
    return {n: _mean(values) for n, values in measurements_by_name(episodes, prefix).items()}


def _of_agent(
    said: list[tuple[Episode, Turn]], *, num_episodes: int, is_data: bool
) -> dict[str, float]:
    turns = [turn for _, turn in said]
    paid = [episode.total(turn) for episode, turn in said if not is_dropped(turn)]
    metrics = {"reward": _mean(paid)} if paid and not is_data else {}
    metrics["turns"] = len(turns) / num_episodes
    sampled = [turn for turn in turns if not is_data or turn.logprobs is not None]
    if sampled:
        metrics["truncated"] = _mean(turn.finish == "length" for turn in sampled)
        metrics["invalid"] = _mean(not turn.valid for turn in sampled)
    metrics |= {f"verdict/{name}": share for name, share in _verdicts(turns).items()}
    own: dict[str, list[float]] = defaultdict(list)
    for turn in turns:
        for name, value in turn.all_rewards.items():
            own[name].append(value)
    metrics |= {f"reward/{name}": _mean(values) for name, values in sorted(own.items())}
    with_ids = [turn for turn in turns if turn.tokens is not None]
    counted = [_num_tokens(turn) for turn in turns]
    if with_ids or any(counted):
        metrics["tokens"] = sum(counted) / num_episodes
    surprise = [-turn.logprobs for turn in with_ids if turn.logprobs is not None]
    if surprise:  # of sampled tokens, its mean estimates the entropy at temperature 1
        metrics["entropy"] = float(np.mean(np.concatenate(surprise)))
    candidates = [turn for turn in turns if turn.candidate is not None]
    if candidates:
        metrics["failed_candidates"] = _mean(bool(turn.candidate_error) for turn in candidates)
    trained = [t.advantages for t in with_ids if t.advantages is not None]
    if trained:
        per_turn = [float(np.mean(advantages)) for advantages in trained]
        metrics["advantage_mean"] = float(np.mean(per_turn))
        metrics["advantage_std"] = float(np.std(per_turn))
        metrics["trained_tokens"] = float(sum(np.count_nonzero(each) for each in trained))
        metrics["zero_signal"] = _mean(not np.any(advantages) for advantages in trained)
    return metrics


def _of_policies(turns: Iterable[Turn]) -> dict[str, float]:
    """Return shares of the turns that were sampled with a policy: `policy/solver/truncated`."""
    sampled: dict[str, list[Turn]] = defaultdict(list)
    for turn in turns:
        if turn.logprobs is not None or turn.tokens is None:
            sampled[turn.policy].append(turn)
    metrics: dict[str, float] = {}
    for policy, own in sorted(sampled.items()):
        credited = [turn.advantages for turn in own if turn.advantages is not None]
        shares: dict[str, float] = {
            "turns": len(own),
            "truncated": _mean(turn.finish == "length" for turn in own),
            "invalid": _mean(not turn.valid for turn in own),
            "credited_turns": len(credited),
        }
        if credited:
            shares["zero_signal"] = _mean(not np.any(advantages) for advantages in credited)
        metrics |= {f"policy/{policy}/{name}": value for name, value in shares.items()}
    return metrics


def _num_tokens(turn: Turn) -> float:
    """Return the number of tokens of an answer; a server that took text has counted them."""
    if turn.tokens is not None:
        return len(turn.tokens)
    return (turn.usage or {}).get("completion_tokens", 0.0)


def _verdicts(turns: list[Turn]) -> dict[str, float]:
    """Return shares of the turns of an agent that must choose: {"approve": 0.75, "reject": 0.2}.

    What is missing to 1 are turns whose verdict could not be read.
    """
    verdicts = [turn.verdict for turn in turns if turn.verdict]
    return {name: verdicts.count(name) / len(turns) for name in sorted(set(verdicts))}


def update_metrics(policy: str, update: Update) -> dict[str, float]:
    row = {
        f"policy/{policy}/grad_norm": update.grad_norm,
        f"policy/{policy}/lr": update.lr,
        f"policy/{policy}/skipped": float(bool(update.skipped)),
        f"policy/{policy}/moved_kl": update.kl,
    }
    for agent, norm in update.agent_grad_norms.items():
        row[f"agent/{agent}/grad_norm"] = norm
    for agent, metrics in update.agent_metrics.items():
        row |= {f"agent/{agent}/{name}": value for name, value in metrics.items()}
    return row


def _mean(values: Iterable[float]) -> float:
    return float(np.mean([float(value) for value in values]))
