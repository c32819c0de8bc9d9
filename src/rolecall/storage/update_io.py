"""Writes what the updates of a step saw of each token as Parquet, one row a turn.

The numbers of whole optimizer steps are in the footer, where they are read without the rows.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rolecall.core.interfaces.learner import TurnTokens, Update
from rolecall.core.json_types import Record
from rolecall.core.types import Floats, Turn
from rolecall.storage.episode_io import compress

if TYPE_CHECKING:
    import pyarrow as pa

OPTIMIZER_STEPS = b"rolecall.optimizer_steps"


@dataclass(slots=True)
class _Row:
    """One turn: its tokens as the first optimizer step saw them, and who trained on it."""

    policy: str
    tokens: dict[str, Any]  # column -> [T]
    clipped: Any  # [T] in any of its optimizer steps; None: nothing clips
    optimizer_steps: list[int] = field(default_factory=list)


def write_updates(path: Path, updates: Mapping[str, Update], turns: Iterable[Turn]) -> None:
    """Write the updates of a step, by policy, and rename the file when it is whole.

    Columns: turn, episode, agent, policy, optimizer_steps (numbers from 1 of those that trained on
    the turn), learner_logprobs [T] before the first of them, entropies [T] in nats, to three
    digits, clipped [T].
    """
    from pyarrow import parquet

    agents = {turn.id: (turn.episode, turn.agent) for turn in turns}
    rows: dict[str, _Row] = {}
    steps: list[Record] = []
    for policy, update in updates.items():
        for number, step in enumerate(update.steps or [update], start=1):
            steps.append(_describe(policy, number, step))
            for tokens in step.tokens:
                _add_turns(rows, policy, number, tokens)
    table = _make_table(rows, agents).replace_schema_metadata({OPTIMIZER_STEPS: json.dumps(steps)})
    aside = path.with_suffix(".tmp")
    aside.parent.mkdir(exist_ok=True)
    parquet.write_table(table, aside, **compress(table.schema, ("learner_logprobs", "entropies")))
    os.replace(aside, path)


def read_optimizer_steps(path: Path) -> list[Record]:
    """Return the numbers of each optimizer step of a file that `write_updates` wrote.

    Keys: policy, optimizer_step (from 1), grad_norm and agent_grad_norms before clipping, lr, kl in
    nats, tokens, skipped (the turn without a finite gradient).
    """
    from pyarrow import parquet

    metadata = parquet.read_schema(path).metadata or {}
    steps: list[Record] = json.loads(metadata.get(OPTIMIZER_STEPS, b"[]"))
    return steps


def _describe(policy: str, number: int, step: Update) -> Record:
    return {
        "policy": policy,
        "optimizer_step": number,
        "grad_norm": step.grad_norm,
        "agent_grad_norms": step.agent_grad_norms,
        "lr": step.lr,
        "kl": step.kl,
        "tokens": sum(len(tokens.logprobs) for tokens in step.tokens),
        "skipped": step.skipped,
    }


def _add_turns(rows: dict[str, _Row], policy: str, number: int, tokens: TurnTokens) -> None:
    ends = np.cumsum(tokens.lengths)
    rounded = None if tokens.entropies is None else _round(tokens.entropies)
    for turn_id, end, length in zip(tokens.turn_ids, ends, tokens.lengths, strict=True):
        own = slice(end - length, end)
        clipped = None if tokens.clipped is None else tokens.clipped[own]
        row = rows.get(turn_id)
        if row is None:
            entropies = None if rounded is None else rounded[own]
            columns = {"learner_logprobs": tokens.logprobs[own], "entropies": entropies}
            row = rows[turn_id] = _Row(policy, columns, clipped)
        elif clipped is not None and row.clipped is not None:
            row.clipped = row.clipped | clipped
        if number not in row.optimizer_steps:
            row.optimizer_steps.append(number)


def _round(values: Floats) -> Floats:
    """Round to 8 binary digits, so that the bytes of the others are zero and take no space."""
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32) + np.uint32(0x8000)
    return (bits & np.uint32(0xFFFF0000)).view(np.float32)


def _make_table(rows: Mapping[str, _Row], agents: Mapping[str, tuple[str, str]]) -> pa.Table:
    import pyarrow as pa

    owners = [agents.get(turn, (None, None)) for turn in rows]
    kept = list(rows.values())
    columns = {
        "turn": pa.array(list(rows), pa.string()),
        "episode": pa.array([episode for episode, _ in owners], pa.string()),
        "agent": pa.array([agent for _, agent in owners], pa.string()),
        "policy": pa.array([row.policy for row in kept], pa.string()),
        "optimizer_steps": pa.array([row.optimizer_steps for row in kept], pa.list_(pa.int32())),
    }
    for name in ("learner_logprobs", "entropies"):
        columns[name] = _join([row.tokens[name] for row in kept], pa.float32())
    columns["clipped"] = _join([row.clipped for row in kept], pa.bool_())
    return pa.table(columns)


def _join(arrays: list[Floats | None], kind: pa.DataType) -> pa.Array:
    """Return a column of lists without a Python object for each number."""
    import pyarrow as pa

    there = [array for array in arrays if array is not None]
    values = pa.array(np.concatenate(there) if there else [], kind)
    sizes = [0 if array is None else len(array) for array in arrays]
    offsets = np.concatenate([[0], np.cumsum(sizes, dtype=np.int32)]).astype(np.int32)
    missing = np.array([array is None for array in arrays], dtype=bool)
    return pa.ListArray.from_arrays(pa.array(offsets), values, mask=pa.array(missing))
