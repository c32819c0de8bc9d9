"""Puts softmax tables in place of language models; all else is the framework's own code.

A turn is one sampled token, the action; the last token of its prompt is the state, a row of the
table. Legend: N episodes, A agents, S states, U actions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn
from torch.nn.utils import parametrize

from rolecall.algorithms.base import Algorithm
from rolecall.core.interfaces.algorithm import Outputs
from rolecall.core.types import Batch, Episode, Task, Turn
from rolecall.learners.packing import pack, split

Ints = NDArray[np.int32]
Doubles = NDArray[np.float64]

BUDGET = 1 << 20  # tokens of a batch: everything is in one


class Table(nn.Module):
    """Logits of each action in each state, [S, U], and a value of each state, [S]."""

    def __init__(self, probabilities: Sequence[Sequence[float]]) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.tensor(probabilities, dtype=torch.float64).log().float())
        self.values = nn.Parameter(torch.zeros(len(self.logits)))

    def probabilities(self) -> Doubles:
        """[S, U]."""
        return self.logits.detach().double().softmax(-1).numpy()

    def logprobs(self, states: Ints, actions: Ints) -> NDArray[np.float32]:
        """Return log-probs of actions [N] in states [N], as the forward pass computes them: [N]."""
        return self.logits.detach().log_softmax(-1).numpy()[states, actions]

    def sample(self, states: Ints, random: np.random.Generator) -> Ints:
        """Sample one action in each of the states [N]."""
        below = np.cumsum(self.probabilities(), axis=1)[states, :-1]
        return (random.random((len(states), 1)) > below).sum(1).astype(np.int32)

    def weights(self) -> dict[str, Tensor]:
        """Return all weights by name, as a policy does."""
        return self.state_dict()

    def outputs(self, batch: Batch) -> Outputs:
        """Return what a language model would say of the batch."""
        places = np.flatnonzero(batch.mask)
        states = torch.from_numpy(batch.tokens[batch.parent[places]]).long()
        actions = torch.from_numpy(batch.tokens[places]).long()
        where = (torch.from_numpy(places),)
        empty = torch.zeros(len(batch.tokens))
        logprobs = self.logits.log_softmax(-1)[states, actions]
        return Outputs(
            logprobs=empty.index_put(where, logprobs),
            values=empty.index_put(where, self.values[states]),
        )


class Overlap(nn.Module):
    """Computes the logits of several states from weights that they have in common."""

    mixing: Tensor

    def __init__(self, kernel: Doubles) -> None:
        super().__init__()
        self.register_buffer("mixing", torch.from_numpy(np.linalg.cholesky(kernel)).float())

    def forward(self, weights: Tensor) -> Tensor:
        return self.mixing @ weights


def overlap_states(table: Table, states: Sequence[int], share: float) -> None:
    """Let these states of a uniform table share their weights, as prompts do in a language model.

    A step that moves the logits of one of them by 1 moves those of the others by `share`.
    """
    kernel = np.eye(len(table.values))
    kernel[np.ix_(states, states)] += share * (1 - np.eye(len(states)))
    parametrize.register_parametrization(table, "logits", Overlap(kernel))


def make_episodes(
    team: dict[str, Table],
    actions: Ints,
    rewards: dict[str, Doubles],
    *,
    states: Ints | None = None,
    attempts: int | None = None,
    start: int = 0,
    in_turn: bool = False,
) -> list[Episode]:
    """N episodes in which every agent, with a policy of its own, says one token.

    actions [N, A], rewards [N] by owner, states [N] or, where agents see different things, [N, A]
    (0 by default). `attempts` episodes in a row share a task, by default all; `start` is the number
    of the first episode. With `in_turn` an agent is told what those before it said; otherwise they
    speak at once.
    """
    num = len(actions)
    states = np.zeros(num, dtype=np.int32) if states is None else states
    seen = (states if states.ndim == 2 else np.tile(states[:, None], len(team))).T
    columns = [actions[:, index].astype(np.int32) for index in range(len(team))]
    logprobs = [t.logprobs(s, c) for t, s, c in zip(team.values(), seen, columns, strict=True)]
    paid = {owner: values.tolist() for owner, values in rewards.items()}
    size = attempts or num
    episodes = []
    for n in range(num):
        name, task = str(start + n), Task(str((start + n) // size), "")
        turns: list[Turn] = []
        for index, agent in enumerate(team):
            turn = Turn(
                id=f"{name}/{index}",
                task=task.id,
                episode=name,
                agent=agent,
                policy=agent,
                path=(index,),
                parents=tuple(turn.id for turn in turns) if in_turn else (),
                prompt=seen[index, n : n + 1],
                tokens=columns[index][n : n + 1],
                logprobs=logprobs[index][n : n + 1],
            )
            turns.append(turn)
        outcome = {owner: values[n] for owner, values in paid.items()}
        episodes.append(Episode(name, task, n % size, start + n, turns, outcome))
    return episodes


def agent_turns(episodes: list[Episode], agent: str) -> list[Turn]:
    """Return all turns of an agent."""
    return [turn for episode in episodes for turn in episode.turns if turn.agent == agent]


def first_advantages(turns: list[Turn]) -> Doubles:
    """Return the advantage of each turn's only token, [N]."""
    return np.array([turn.advantages[0] for turn in turns], dtype=np.float64)  # type: ignore[index]


def value(turns: list[Turn], values: ArrayLike) -> None:
    """Write what a critic expected before each turn: one number, or [N]."""
    for turn, expected in zip(turns, np.broadcast_to(values, len(turns)), strict=True):
        turn.training.values = np.full(1, expected, dtype=np.float32)


def table_logprobs(table: Table, turns: list[Turn]) -> list[NDArray[np.float32]]:
    """Return the log-prob of each turn's only token under the table as it is: [1] each."""
    states = np.array([turn.ids[0][-1] for turn in turns], dtype=np.int32)
    actions = np.array([turn.ids[1][0] for turn in turns], dtype=np.int32)
    logprobs = table.logprobs(states, actions)
    return [logprobs[n : n + 1] for n in range(len(turns))]


def pack_turns(turns: list[Turn], algorithm: Algorithm) -> list[Batch]:
    """Pack turns into batches as the trainer does."""
    pairs = algorithm.pairs(turns) if algorithm.keep_together else None
    return pack(turns, budget=BUDGET, skip_zero=algorithm.skips_zero, pairs=pairs)


def backward(table: Table, batches: list[Batch], algorithm: Algorithm) -> float:
    """Fill the table's gradients, divided once by the count of all batches; returns the loss."""
    table.zero_grad()
    losses = [algorithm.loss(batch, table.outputs(batch)) for batch in batches]
    total, count = torch.stack([x.total for x in losses]).sum(), sum(x.count for x in losses)
    (total / count).backward()
    return float(total.detach()) / count


def gradient(table: Table, turns: list[Turn], algorithm: Algorithm) -> Tensor:
    """Return the gradient of the loss on the logits: [S, U]."""
    backward(table, pack_turns(turns, algorithm), algorithm)
    assert table.logits.grad is not None
    return table.logits.grad.clone()


def prepare_batches(table: Table, turns: list[Turn], algorithm: Algorithm) -> list[Batch]:
    """Return the batches of an update that is about to begin."""
    if algorithm.needs_prox:
        for turn, logprobs in zip(turns, table_logprobs(table, turns), strict=True):
            turn.training.prox_logprobs = logprobs
    return pack_turns(turns, algorithm)


def descend(table: Table, batches: list[Batch], algorithm: Algorithm, *, lr: float) -> None:
    """Take one SGD step on all batches for each of the algorithm's epochs."""
    for _ in range(algorithm.epochs if batches else 0):
        _step(table, batches, algorithm, lr=lr)


def _step(table: Table, batches: list[Batch], algorithm: Algorithm, *, lr: float) -> None:
    backward(table, batches, algorithm)
    for parameter in table.parameters():
        if parameter.grad is not None:
            parameter.data.add_(parameter.grad, alpha=-lr)


def update(table: Table, turns: list[Turn], algorithm: Algorithm, *, lr: float) -> None:
    """Update a table as the trainer updates a policy, but with SGD.

    Each minibatch is a step of its own.
    """
    batches = prepare_batches(table, turns, algorithm)
    if algorithm.minibatches == 1:
        descend(table, batches, algorithm, lr=lr)
        return
    random = np.random.default_rng(0)
    for _ in range(algorithm.epochs):
        for share, _ in split(turns, algorithm.minibatches, random=random):
            if batches := pack_turns(share, algorithm):
                _step(table, batches, algorithm, lr=lr)
