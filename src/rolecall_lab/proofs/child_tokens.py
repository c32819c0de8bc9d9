"""Checks that each token of MATPO's workers carries the advantage of the planner's episode.

Copying the planner's row of advantages to its workers, zeros of its tool text included, would
reach 3 of the 7 tokens here (2510.04678).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from rolecall.algorithms.matpo import Matpo
from rolecall.core.interfaces.algorithm import Outputs
from rolecall.core.types import Episode, Task, Turn
from rolecall_lab.proofs import Claim
from rolecall_lab.proofs.tabular import Doubles, pack_turns

WORKERS = (3, 4)  # sampled tokens of the winner's two workers
PLANNER = 5  # sampled tokens of a planner's turn
POLICY = "model"  # planner and workers are one


def attempts(workers: tuple[int, ...] = WORKERS) -> list[Episode]:
    """An attempt that earns 1 with these workers' calls, and one that earns 0 and calls nobody."""
    return [_attempt(0, workers, earned=1.0), _attempt(1, (), earned=0.0)]


def _attempt(number: int, workers: tuple[int, ...], *, earned: float) -> Episode:
    name = str(number)
    plan = _turn(name, "planner", 0, PLANNER)
    called = [_turn(name, "worker", call, n) for call, n in enumerate(workers, start=1)]
    for turn in called:
        turn.parents = (plan.id,)
    return Episode(name, Task("x", ""), number, number, [plan, *called], {"team": earned})


def _turn(episode: str, agent: str, call: int, length: int) -> Turn:
    return Turn(
        id=f"{episode}/{call}",
        task="x",
        episode=episode,
        agent=agent,
        policy=POLICY,
        path=(call,),
        prompt=np.arange(4, dtype=np.int32) + 10 * call + 100 * int(episode),
        tokens=np.arange(length, dtype=np.int32),
        logprobs=np.full(length, -1.0, dtype=np.float32),
    )


def slopes(episodes: list[Episode]) -> dict[str, Doubles]:
    """Return by turn what the loss, before it is divided, gains from each token's log-prob: [T]."""
    algorithm = Matpo()
    algorithm.credit(episodes)
    gradients: dict[str, Doubles] = {}
    for batch in pack_turns([turn for episode in episodes for turn in episode.turns], algorithm):
        assert batch.old_logprobs is not None
        logprobs = torch.from_numpy(batch.old_logprobs).requires_grad_()
        algorithm.loss(batch, Outputs(logprobs)).total.backward()
        assert logprobs.grad is not None
        gains = -logprobs.grad.double().numpy()
        assert not gains[batch.mask == 0].any(), "a token that nobody sampled has a gradient"
        for number, name in enumerate(batch.turn_ids):
            gradients[name] = gains[(batch.turn == number) & (batch.mask > 0)]
    return gradients


def claims() -> Iterator[Claim]:
    """Yield claims on each token's gradient, and on what one more worker changes."""
    expected = 0.707106
    gradients = slopes(attempts())
    tokens = np.concatenate([gradients[f"0/{call}"] for call in (1, 2)])
    right = int((np.abs(tokens - expected) < 1e-5).sum())
    yield Claim(
        "MATPO, outcomes 1 and 0: tokens of the winner's two workers whose log-prob has the "
        "gradient A = .707106.",
        "7 of 7",
        f"{right} of {len(tokens)}",
        right == len(tokens) == sum(WORKERS),
    )
    more = slopes(attempts((*WORKERS, 6)))
    changed = max(float(np.abs(more[name] - gradients[name]).max()) for name in gradients)
    yield Claim(
        "The same with a third worker: the largest change of another token's gradient.",
        "0",
        f"{changed:g}",
        changed == 0.0,
    )
