"""Estimates for each token of a step how much it moved the gradient, and ranks them.

The gradient of a token's loss is its weight, ratio and advantage times the gradient of its
log-prob, whose size at the logits is about 1 - p, divided by the temperature.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rolecall.core.json_types import Record
from rolecall.watch.clean_json import finite, load_object
from rolecall.watch.index import Array
from rolecall.watch.models import Norm, SpikeAgent, Spikes, SpikeToken, SpikeTurn
from rolecall.watch.norms import compute_usual_norms, read_norms
from rolecall.watch.runs import WatchedRun
from rolecall.watch.tables import read_rows
from rolecall.watch.texts import write_tokens

COLUMNS = (
    "turn", "episode", "agent", "policy", "trained", "advantage", "token_ids", "logprobs",
    "advantages", "info", "weight", "temperature",
)  # fmt: skip
UPDATED = ("turn", "optimizer_steps", "learner_logprobs", "clipped")
MOST_TURNS, MOST_TOKENS = 20, 100
AROUND = 12  # tokens on each side of one that is shown
Place = tuple[str, int]  # policy and optimizer step


@dataclass(frozen=True, slots=True)
class TurnEstimate:
    """The estimates of a turn's tokens in one optimizer step."""

    row: Record
    owner: Place
    logprobs: Array
    ratios: Array
    estimates: Array

    @property
    def total(self) -> float:
        return float(self.estimates.sum())


def answer_spikes(
    run: WatchedRun,
    step: int | None,
    *,
    job: str = "",
    measured: Mapping[tuple[str, int], float] | None = None,
) -> Spikes:
    """Return where the gradient of a step came from; `measured` has norms by turn and token."""
    number = run.choose_step(step)
    rows = read_rows(run.episode_file(number), COLUMNS)
    updates = {row["turn"]: row for row in read_rows(run.update_file(number), UPDATED).records}
    metrics = run.series.refresh()
    norms, missing = read_norms(run, number, metrics.at_step(number))
    estimates = [
        estimate
        for row in rows.records
        for estimate in estimate_turn(row, updates.get(row["turn"]), has_updates=bool(updates))
    ]
    totals: dict[Place, float] = defaultdict(float)
    for estimate in estimates:
        totals[estimate.owner] += estimate.total
    return Spikes(
        run=run.name,
        step=number,
        steps=run.list_steps(),
        norms=norms,
        median=compute_usual_norms(metrics, number),
        agents=_rank_agents(estimates, totals, norms),
        turns=_rank_turns(estimates, totals),
        tokens=_rank_tokens(run, estimates, totals, measured or {}),
        of_tokens=sum(len(estimate.estimates) for estimate in estimates),
        note=_note(has_updates=bool(updates)),
        job=job,
        missing=[*rows.missing, *missing],
    )


def estimate_turn(row: Record, update: Record | None, *, has_updates: bool) -> list[TurnEstimate]:
    """Return the estimates of a turn's tokens, for each optimizer step that trained on it.

    Without a file of updates every trained turn is of step 0 and has ratio 1. A demonstration,
    which no policy sampled, has ratio 1 too. Clipped tokens have no gradient.
    """
    number = len(row["token_ids"] or ())
    if not number or not row["trained"] or (has_updates and update is None):
        return []
    update = update or dict.fromkeys(UPDATED)
    sampled = _floats(row["logprobs"] or update["learner_logprobs"] or ())
    learned = _floats(update["learner_logprobs"] or row["logprobs"] or ())
    advantages, clipped = _floats(row["advantages"] or ()), update["clipped"]
    if not len(sampled) == len(learned) == len(advantages) == number:
        return []
    is_clipped = np.zeros(number, bool)
    if clipped and len(clipped) == number:
        is_clipped = np.array([bool(one) for one in clipped])
    steps: Sequence[int] = update["optimizer_steps"] or (0,)
    weight, temperature = _read_scale(row)
    with np.errstate(over="ignore", invalid="ignore"):
        ratios = np.exp(learned - sampled)
        size = np.abs(weight * ratios * advantages) * (1 - np.exp(learned)) / temperature
    size = np.where(is_clipped, 0.0, np.nan_to_num(size, nan=0.0, posinf=0.0))
    return [TurnEstimate(row, (row["policy"] or "", s), learned, ratios, size) for s in steps]


def _read_scale(row: Record) -> tuple[float, float]:
    """Return the weight of a turn's loss and its temperature, which older files note in `info`."""
    info = {} if row["weight"] is not None else load_object(row["info"])
    weight = finite(row["weight"]), finite(info.get("weight"))
    temperature = finite(row["temperature"]), finite(info.get("temperature"))
    scale = [next((one for one in pair if one is not None), 1.0) for pair in (weight, temperature)]
    return scale[0], scale[1] or 1.0


def _rank_agents(
    estimates: Sequence[TurnEstimate], totals: Mapping[Place, float], norms: Sequence[Norm]
) -> list[SpikeAgent]:
    grouped: dict[tuple[Place, str], list[TurnEstimate]] = defaultdict(list)
    for estimate in estimates:
        grouped[estimate.owner, estimate.row["agent"] or ""].append(estimate)
    recorded = {(norm.policy, norm.optimizer_step): norm for norm in norms}
    ranked = []
    for (owner, agent), turns in grouped.items():
        total = sum(turn.total for turn in turns)
        norm = recorded.get(owner)
        ranked.append(
            SpikeAgent(
                agent=agent,
                policy=owner[0],
                optimizer_step=owner[1],
                turns=len(turns),
                tokens=sum(len(turn.estimates) for turn in turns),
                estimate=total,
                share=_share(total, totals[owner]),
                grad_norm=None if norm is None else norm.agents.get(agent),
            )
        )
    return sorted(ranked, key=lambda one: -one.estimate)


def _rank_turns(
    estimates: Sequence[TurnEstimate], totals: Mapping[Place, float]
) -> list[SpikeTurn]:
    ranked = sorted(estimates, key=lambda one: -one.total)[:MOST_TURNS]
    return [
        SpikeTurn(
            turn=one.row["turn"],
            episode=one.row["episode"] or "",
            agent=one.row["agent"] or "",
            policy=one.owner[0],
            optimizer_step=one.owner[1],
            tokens=len(one.estimates),
            advantage=finite(one.row["advantage"]) or 0.0,
            estimate=one.total,
            share=_share(one.total, totals[one.owner]),
        )
        for one in ranked
    ]


def _rank_tokens(
    run: WatchedRun,
    estimates: Sequence[TurnEstimate],
    totals: Mapping[Place, float],
    measured: Mapping[tuple[str, int], float],
) -> list[SpikeToken]:
    if not estimates:
        return []
    sizes = np.concatenate([one.estimates for one in estimates])
    owners = np.repeat(np.arange(len(estimates)), [len(one.estimates) for one in estimates])
    starts = np.cumsum([0, *(len(one.estimates) for one in estimates)])
    ranked = np.argsort(-sizes, kind="stable")[:MOST_TOKENS].tolist()
    texts: dict[str, list[str]] = {}
    tokens = []
    for row in ranked:
        one = estimates[owners[row]]
        token = row - int(starts[owners[row]])
        name = one.row["turn"]
        if name not in texts:
            ids = list(one.row["token_ids"])
            texts[name] = write_tokens(run, one.owner[0], ids)[0]
        tokens.append(_show_token(one, token, texts[name], totals, measured))
    return tokens


def _show_token(
    one: TurnEstimate,
    token: int,
    texts: list[str],
    totals: Mapping[Place, float],
    measured: Mapping[tuple[str, int], float],
) -> SpikeToken:
    size = float(one.estimates[token])
    return SpikeToken(
        turn=one.row["turn"],
        episode=one.row["episode"] or "",
        agent=one.row["agent"] or "",
        policy=one.owner[0],
        optimizer_step=one.owner[1],
        token=token,
        text=texts[token],
        before="".join(texts[max(0, token - AROUND) : token]),
        after="".join(texts[token + 1 : token + AROUND + 1]),
        logprob=finite(float(one.logprobs[token])) or 0.0,
        advantage=finite(one.row["advantages"][token]) or 0.0,
        ratio=finite(float(one.ratios[token])) or 0.0,
        estimate=size,
        share=_share(size, totals[one.owner]),
        measured=measured.get((one.row["turn"], token)),
    )


def _note(*, has_updates: bool) -> str:
    note = (
        "an estimate without the model: |weight x ratio x advantage| (1 - p) / temperature; "
        "clipped tokens count as 0"
    )
    if has_updates:
        return note
    return (
        f"{note}. This step has no recorded update, so the learner's log-probs are taken to be "
        "the sampler's (ratio 1), and all tokens of a policy to be of one optimizer step"
    )


def _share(amount: float, total: float) -> float:
    return amount / total if total else 0.0


def _floats(values: Sequence[Any]) -> Array:
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)
