"""Packs turns of one policy into the micro-batches of one optimizer step, without padding.

Turns that begin with the same tokens (a group's prompt, a later turn that extends an earlier one)
stand in one prefix tree, in which those tokens are computed once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rolecall.core.json_types import Options
from rolecall.core.types import NO_PARENT, Batch, Floats, Ids, Pair, Turn

SHARED = 1 / 16  # of a turn's tokens; attention in two parts costs more than fewer tokens save
COLUMNS = (
    "old_logprobs", "advantages", "returns", "weight", "temperature", "prox_logprobs",
    "ref_logprobs", "values", "index", "words",
)  # fmt: skip


def pack(
    turns: list[Turn],
    *,
    budget: int,
    skip_zero: bool = False,
    share: bool = True,
    by_agent: bool = True,
    pairs: list[Pair] | None = None,
) -> list[Batch]:
    """Batches of at most `budget` tokens (a longer turn stands alone).

    With `by_agent`, and with pairs, each is of one agent, so that gradients can be told apart.
    Without it, agents that read one another share those tokens too.

    With `skip_zero`, turns whose advantages are all zero are left out: without other loss terms
    their gradient is zero. They still count in the normalisers, on their agent's first batch.
    With `share`, turns that begin alike share those tokens. With `pairs`, both turns of a pair are
    in one batch (and a turn may be in several batches); raises ValueError if a pair does not fit.
    """
    assert turns, "nothing to pack"
    kept = [t for t in turns if not skip_zero or np.any(t.advantages)]
    skipped = [t for t in turns if skip_zero and not np.any(t.advantages)]
    units = [[turn] for turn in kept] if pairs is None else [list(pair) for pair in pairs]
    batches: list[Batch] = []
    remaining = list(pairs or [])
    apart = by_agent or pairs is not None
    for agent in sorted({unit[0].agent if apart else "" for unit in units}):
        mine = [unit for unit in units if not apart or unit[0].agent == agent]
        for trees in _fill(_trees(mine, share=share, budget=budget), budget=budget, share=share):
            inside = {turn.id for tree in trees for turn in tree}
            here = [pair for pair in remaining if {turn.id for turn in pair} <= inside]
            remaining = [pair for pair in remaining if pair not in here]
            batches.append(join(trees, pairs=here, share=share))
            if pairs is not None and len(batches[-1].tokens) > budget:
                raise ValueError(
                    f"a pair of {agent!r} has {len(batches[-1].tokens)} tokens, more than "
                    f"learner.tokens_per_batch ({budget})"
                )
    if batches and pairs is None:
        parts = [own for batch in batches for own in batch.parts or [batch]]
        first = {own.agent: own for own in reversed(parts)}
        for turn in skipped:
            counted = first.get(turn.agent, parts[0])
            counted.num_turns += 1
            counted.num_tokens += len(turn.ids[1])
    return batches


def number_turns(turns: list[Turn]) -> tuple[dict[str, Turn], list[Turn]]:
    """Return copies whose ids differ, and each original by the id of its copy.

    For turns of several runs or stages, whose ids may be equal.
    """
    copies = [copy(turn) for turn in turns]
    for number, turn in enumerate(copies):
        turn.id = str(number)
    return {str(number): turn for number, turn in enumerate(turns)}, copies


def _trees(units: list[list[Turn]], *, share: bool, budget: int) -> list[list[Turn]]:
    """Group turns that share enough tokens; each list becomes one prefix tree."""
    trees: list[list[Turn]] = []
    size, before = 0, np.zeros(0, dtype=np.int32)
    for unit in sorted(units, key=lambda unit: _order(unit[0])):
        first = _ids(unit[0])
        common = min(_common(before, first), len(unit[0].ids[0])) if share else 0
        whole = sum(map(_length, unit))
        new = whole - common * len(unit)
        if trees and common > SHARED * len(first) and size + new <= budget:
            trees[-1] += [turn for turn in unit if turn not in trees[-1]]
            size += new
        else:
            trees.append(list(unit))
            size = _tree_size(unit, share=share)
        before = first
    return trees


def _fill(trees: list[list[Turn]], *, budget: int, share: bool) -> list[list[list[Turn]]]:
    """Trees of similar size lie in one batch, the largest first."""
    sized = sorted(
        ((_tree_size(tree, share=share), tree) for tree in trees), key=lambda pair: -pair[0]
    )
    rows: list[list[list[Turn]]] = []
    room = 0
    for size, tree in sized:
        if not rows or size > room:
            rows.append([])
            room = budget
        rows[-1].append(tree)
        room -= size
    return rows


@dataclass(frozen=True, slots=True)
class _Row:
    """The tokens of turns in one row, where those that turns share stand once."""

    turns: list[Turn]
    paths: list[Ids]  # of each turn: where its tokens stand
    tokens: Ids
    parents: Ids  # where the token before each one stands
    owners: Ids  # index of the turn that each token was written for


def _lay_out(trees: list[list[Turn]], *, share: bool) -> _Row:
    """Write trees one after another, the turns of each sorted by their tokens."""
    turns: list[Turn] = []
    paths: list[Ids] = []
    tokens: list[Ids] = []
    parents: list[Ids] = []
    end = 0
    for tree in trees:
        path = np.zeros(0, dtype=np.int32)
        for turn, ids, shared in _walk(tree, share=share):
            new = np.arange(end, end + len(ids) - shared, dtype=np.int32)
            path = np.concatenate([path[:shared], new])
            parents.append(np.concatenate([[NO_PARENT], path])[shared : len(ids)])
            tokens.append(ids[shared:])
            turns.append(turn)
            paths.append(path)
            end += len(new)
    owners = np.repeat(np.arange(len(turns), dtype=np.int32), [len(own) for own in tokens])
    return _Row(
        turns,
        paths,
        np.concatenate(tokens).astype(np.int32),
        np.concatenate(parents).astype(np.int32),
        owners,
    )


def join(trees: list[list[Turn]], *, pairs: Iterable[Pair] = (), share: bool = True) -> Batch:
    """Join these trees into one batch, in this order; a tree's turns are sorted by their tokens.

    Without `share` they share no tokens: the turns of a pair stand in one tree all the same.
    """
    row = _lay_out(trees, share=share)
    turns, size = row.turns, len(row.tokens)
    sampled = [path[len(turn.ids[0]) :] for turn, path in zip(turns, row.paths, strict=True)]

    def column(values: Sequence[Floats | float]) -> Floats:
        """Put each turn's values [T] (or one number) where its sampled tokens stand, else 0.

        VDN and QMIX keep one value more: after the last token.
        """
        numbers = np.zeros(size, dtype=np.float32)
        for places, value in zip(sampled, values, strict=True):
            numbers[places] = value if isinstance(value, float) else value[: len(places)]
        return numbers

    def if_complete(columns: list[Floats | None]) -> Floats | None:
        present = [values for values in columns if values is not None]
        return column(present) if len(present) == len(columns) else None

    def or_zero(columns: list[Floats | None]) -> Floats:
        return column([0.0 if values is None else values for values in columns])

    depth = np.zeros(size, dtype=np.int32)
    for path in row.paths:
        depth[path] = np.arange(len(path))
    number = {turn.id: index for index, turn in enumerate(turns)}
    agents, notes = [turn.agent for turn in turns], [turn.training for turn in turns]
    batch = Batch(
        policy=turns[0].policy,
        agent=agents[0] if len(set(agents)) == 1 else "",
        tokens=row.tokens,
        positions=depth,
        parent=row.parents,
        mask=column([1.0] * len(turns)),
        index=column([float(turn.index) for turn in turns]).astype(np.int32),
        words=column([float(max(1, len(turn.text.split()))) for turn in turns]).astype(np.int32),
        turn=row.owners,
        turn_ids=[turn.id for turn in turns],
        old_logprobs=if_complete([turn.logprobs for turn in turns]),
        advantages=or_zero([turn.advantages for turn in turns]),
        returns=or_zero([turn.returns for turn in turns]),
        weight=column([turn.weight for turn in turns]),
        temperature=column([turn.temperature for turn in turns]),
        prox_logprobs=if_complete([note.prox_logprobs for note in notes]),
        ref_logprobs=if_complete([note.ref_logprobs for note in notes]),
        values=if_complete([note.values for note in notes]),
        pairs=np.array(
            [(number[better.id], number[worse.id]) for better, worse in pairs], dtype=np.int32
        ).reshape(-1, 2),
        num_tokens=sum(len(turn.ids[1]) for turn in turns),
        num_turns=len(turns),
    )
    if not batch.agent:
        batch.parts = [_part(batch, agents, agent) for agent in sorted(set(agents))]
    return batch


def _part(batch: Batch, agents: list[str], agent: str) -> Batch:
    """Return one agent's turns of a batch: the same tokens, with what others sampled as context."""
    mine = np.array([name == agent for name in agents])
    own = mine[batch.turn] & (batch.mask > 0)
    return replace(
        batch,
        agent=agent,
        mask=own.astype(np.float32),
        turn=np.where(own, mine.cumsum(dtype=np.int32)[batch.turn] - 1, 0),
        turn_ids=[name for name, kept in zip(batch.turn_ids, mine, strict=True) if kept],
        num_tokens=int(own.sum()),
        num_turns=int(mine.sum()),
        **_columns(batch, own),
    )


def _columns(batch: Batch, own: NDArray[np.bool_]) -> Options:
    """Return the numbers of the batch where `own` [N] is set, else 0."""
    columns = {name: getattr(batch, name) for name in COLUMNS}
    return {
        n: None if values is None else np.where(own, values, 0) for n, values in columns.items()
    }


def select_turn(batch: Batch, number: int) -> Batch:
    """Return the batch that holds only its `number`-th turn, to name the turn that broke a step."""
    sampled = (batch.turn == number) & (batch.mask > 0)
    keep = sampled.copy()
    token = int(np.flatnonzero(sampled)[0])
    while (token := int(batch.parent[token])) != NO_PARENT:
        keep[token] = True
    # What other turns sampled stands here as context, and has none of their numbers.
    columns = _columns(batch, sampled)
    cut: Options = {n: None if c is None else c[keep] for n, c in columns.items()}
    size = int(keep.sum())
    return Batch(
        policy=batch.policy,
        agent=batch.agent,
        tokens=batch.tokens[keep],
        positions=batch.positions[keep],
        parent=np.arange(NO_PARENT, size - 1, dtype=np.int32),
        mask=sampled[keep].astype(np.float32),
        turn=np.zeros(size, dtype=np.int32),
        turn_ids=[batch.turn_ids[number]],
        pairs=np.zeros((0, 2), dtype=np.int32),
        num_tokens=int(sampled.sum()),
        num_turns=1,
        **cut,
    )


def split(
    turns: list[Turn],
    parts: int,
    *,
    random: np.random.Generator,
    pairs: list[Pair] | None = None,
) -> list[tuple[list[Turn], list[Pair] | None]]:
    """Split turns (or pairs) among one pass's optimizer steps, in random order, none empty."""
    if parts == 1:
        return [(turns, pairs)]
    if pairs is None:
        order = random.permutation(len(turns))
        chosen = [[turns[i] for i in sorted(share)] for share in np.array_split(order, parts)]
        return [(share, None) for share in chosen if share]
    order = random.permutation(len(pairs))
    chosen_pairs = [[pairs[i] for i in sorted(share)] for share in np.array_split(order, parts)]
    return [([turn for pair in share for turn in pair], share) for share in chosen_pairs if share]


def _ids(turn: Turn) -> Ids:
    return np.concatenate(turn.ids)


def _order(turn: Turn) -> bytes:
    """Sorts turns as a dictionary sorts words: those with a common prefix are neighbours."""
    return _ids(turn).astype(">u4").tobytes()


def _common(a: Ids, b: Ids) -> int:
    """Length of the common prefix."""
    size = min(len(a), len(b))
    differ = np.flatnonzero(a[:size] != b[:size])
    return int(differ[0]) if len(differ) else size


def _walk(tree: list[Turn], *, share: bool) -> Iterator[tuple[Turn, Ids, int]]:
    """Yield a tree's turns in the order of their tokens.

    Each comes with its tokens, and how many of them stand there already.
    """
    before = np.zeros(0, dtype=np.int32)
    for turn in sorted(tree, key=_order):
        ids = _ids(turn)
        # Sorted so, the tokens that a turn shares with any earlier one it shares with the last.
        yield turn, ids, min(_common(before, ids), len(turn.ids[0])) if share else 0
        before = ids


def _tree_size(tree: list[Turn], *, share: bool) -> int:
    """Return how many tokens `join` writes for this tree."""
    return sum(len(ids) - shared for _, ids, shared in _walk(tree, share=share))


def _length(turn: Turn) -> int:
    return len(turn.ids[0]) + len(turn.ids[1])
