"""Turns of one policy in, micro-batches of one optimizer step out: no padding, a budget of ids."""

from __future__ import annotations

from typing import Any

import numpy as np

from rolecall.core import NO_PARENT, Batch, Turn


def pack(turns: list[Turn], *, budget: int, skip_zero: bool) -> list[Batch]:
    """Batches of at most `budget` ids (a longer turn stands alone), each of one agent.

    Turns lie longest first, so that rows of one batch have similar lengths. With `skip_zero`,
    turns whose advantages are all zero are left out: without other loss terms their gradient is
    zero. They still count in the normalisers, which the first batch carries.
    """
    assert turns, "nothing to pack"
    kept = [t for t in turns if not skip_zero or np.any(t.advantages)]
    batches: list[Batch] = []
    for agent in sorted({turn.agent for turn in kept}):
        mine = sorted((t for t in kept if t.agent == agent), key=lambda t: -_length(t))
        row: list[Turn] = []
        for turn in mine:
            if row and sum(map(_length, row)) + _length(turn) > budget:
                batches.append(join(row))
                row = []
            row.append(turn)
        batches.append(join(row))
    if batches:
        batches[0].num_turns += len(turns) - len(kept)
        batches[0].num_tokens += sum(len(t.ids[1]) for t in turns) - sum(
            b.num_tokens for b in batches
        )
    return batches


def join(turns: list[Turn]) -> Batch:
    """One batch of these turns, in this order."""
    lengths = [_length(turn) for turn in turns]
    position = np.concatenate([np.arange(n) for n in lengths])
    parent = np.where(position == 0, NO_PARENT, np.arange(len(position)) - 1)

    def column(name: str) -> np.ndarray:
        """A turn's sampled values [T], with zeros where its prompt stands."""
        parts = []
        for turn in turns:
            values = getattr(turn, name)
            values = np.zeros(len(turn.ids[1])) if values is None else values
            parts += [np.zeros(len(turn.ids[0])), values]
        return np.concatenate(parts).astype(np.float32)

    def constant(values: list[float]) -> np.ndarray:
        return np.repeat(np.array(values, dtype=np.float32), lengths)

    return Batch(
        policy=turns[0].policy,
        agent=turns[0].agent,
        tokens=np.concatenate([ids for t in turns for ids in t.ids]),
        positions=position.astype(np.int32),
        parent=parent.astype(np.int32),
        mask=np.concatenate(
            [np.repeat([0.0, 1.0], [len(t.ids[0]), len(t.ids[1])]) for t in turns]
        ).astype(np.float32),
        turn=np.repeat(np.arange(len(turns)), lengths).astype(np.int32),
        turn_ids=[turn.id for turn in turns],
        old_logprobs=column("logprobs"),
        advantages=column("advantages"),
        returns=column("returns"),
        weight=constant([turn.weight for turn in turns]),
        temperature=constant([turn.temperature for turn in turns]),
        turn_length=constant([len(turn.ids[1]) for turn in turns]),
        num_tokens=sum(len(turn.ids[1]) for turn in turns),
        num_turns=len(turns),
    )


def one_turn(batch: Batch, number: int) -> Batch:
    """The batch that holds only its `number`-th turn; for naming the turn that broke a step."""
    keep = batch.turn == number
    start = int(np.argmax(keep))
    columns = (
        "tokens", "positions", "mask", "turn", "old_logprobs", "advantages", "returns", "weight",
        "temperature", "turn_length",
    )  # fmt: skip
    cut: dict[str, Any] = {name: getattr(batch, name)[keep] for name in columns}
    parent = batch.parent[keep]
    return Batch(
        policy=batch.policy,
        agent=batch.agent,
        parent=np.where(parent == NO_PARENT, NO_PARENT, parent - start).astype(np.int32),
        turn_ids=[batch.turn_ids[number]],
        num_tokens=int(cut["mask"].sum()),
        num_turns=1,
        **cut,
    )


def _length(turn: Turn) -> int:
    return len(turn.ids[0]) + len(turn.ids[1])
