"""A softmax without a network, and small teams whose turns carry all that a learner annotates."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

import numpy as np
import torch

from rolecall.algorithms.base import Algorithm
from rolecall.algorithms.dpo import Dpo
from rolecall.config import registry
from rolecall.core.interfaces.algorithm import Outputs
from rolecall.core.types import Batch, Episode, Turn, Utility
from rolecall.learners.packing import join
from tests.toy import episode, turn

NAMES = sorted(registry.BUILT_IN["algorithm"])


def algorithm(name: str, **options) -> Algorithm:
    """A built-in algorithm with those of the options that it has.

    Lengths that a config takes from the team lie above the turns made here.
    """
    kind = registry.resolve("algorithm", name, key="algorithm.name")
    if name == "dapo":
        options = {"longest": 100, **options}
    if name == "pass_at_k":  # the groups of these tests are small
        options = {"k": 1, "right": 0.5, **options}
    if name == "read":  # else it trains nobody
        options = {"train": True, **options}
    if name.endswith("_value"):  # likewise
        options = {"distil": True, **options}
    known = set(inspect.signature(kind).parameters)
    made = kind(**{key: value for key, value in options.items() if key in known})
    lacks = getattr(made, "agg", "") == "turn_sum" and made.turn_length is None
    return made.model_copy(update={"turn_length": 100}) if lacks else made


def said(episodes: list[Episode], agent: str) -> list[float]:
    """Advantages of an agent's turns, of which every id has the same."""
    found = [t.advantages for e in episodes for t in e.turns if t.agent == agent]
    assert all((advantages == advantages[0]).all() for advantages in found)
    return [float(advantages[0]) for advantages in found]


def singles(rewards: Sequence[float], *, task: str = "x", length: int = 2) -> list[Episode]:
    """One turn of one agent an episode."""
    return [
        episode(
            i, [turn(task=task, episode=f"{task}{i}", tokens=[7] * length)], {"team": r}, task=task
        )
        for i, r in enumerate(rewards)
    ]


def floats(values: Sequence[float]) -> np.ndarray:
    return np.array(values, dtype=np.float32)


def annotated(made: Turn, *, seed: int) -> Turn:
    """The turn with everything that learners and critics write, drawn from `seed`."""
    draw = np.random.default_rng(seed)
    size = len(made.tokens)
    made.logprobs = floats(draw.uniform(-1.2, -0.8, size))
    for name in ("prox_logprobs", "new_logprobs", "ref_logprobs"):
        setattr(made.training, name, floats(draw.uniform(-1.2, -0.8, size)))
    made.training.values = floats(draw.uniform(0, 1, size))
    made.training.preference = float(draw.uniform())
    gain, mixed_q, mixed_v = draw.normal(), draw.uniform(), draw.uniform()
    made.training.utility = Utility(0.0, 0.0, gain=gain, mixed_q=mixed_q, mixed_v=mixed_v)
    return made


def team_step(
    *, tasks: Sequence[str] = ("x", "y"), attempts: int = 4, shift: float = 0.0, scale: float = 1.0
) -> list[Episode]:
    """Solver, verifier who reads it, solver who reads both; scores scale * drawn + shift.

    Attempts share prompts, so that algorithms that compare equal prompts have something to do.
    """
    draw = np.random.default_rng(0)
    made = []
    for task in tasks:
        for i in range(attempts):
            name = f"{task}{i}"
            first = turn("solver", task=task, episode=name, tokens=[7] * (1 + i), policy="a")
            check = turn("verifier", task=task, episode=name, path=(1,), policy="b", prompt=[5, 9])
            last = turn("solver", task=task, episode=name, path=(2,), prompt=[5, 6, 7], policy="a")
            check.parents, last.parents, last.index = (first.id,), (first.id, check.id), 1
            for number, one in enumerate((first, check, last)):
                annotated(one, seed=10 * len(made) + number)
                one.rewards = {"own": scale * draw.uniform(-0.2, 0.2)}
            rewards = {"team": scale * draw.uniform() + shift}
            made.append(episode(i, [first, check, last], rewards, task=task))
    return made


class Unigram:
    """A policy that knows no context: one logit for each id. Its gradient is that of a softmax."""

    def __init__(self, logits: Sequence[float]) -> None:
        self.logits = torch.tensor(logits, dtype=torch.float32, requires_grad=True)

    def forward(self, batch: Batch) -> Outputs:
        mask = torch.from_numpy(batch.mask)
        logprobs = self.logits.log_softmax(0)
        ids = torch.from_numpy(batch.tokens).long() * mask.long()  # a prompt may hold any id
        sampled = logprobs[ids] * mask
        entropies = -(logprobs.exp() * logprobs).sum() * mask
        return Outputs(sampled, entropies=entropies, values=self.logits[0] * mask)

    def gradient(self, batches: list[Batch], algorithm: Algorithm) -> torch.Tensor:
        """Of one optimizer step, as the learner forms it: sums first, one division."""
        losses = [algorithm.loss(batch, self.forward(batch)) for batch in batches]
        total = torch.stack([loss.total for loss in losses]).sum()
        count = max(sum(loss.count for loss in losses), 1.0)
        return torch.autograd.grad(total / count, self.logits)[0]

    def descend(self, batches: list[Batch], algorithm: Algorithm, *, lr: float) -> None:
        """One step of plain gradient descent."""
        gradient = self.gradient(batches, algorithm)
        with torch.no_grad():
            self.logits -= lr * gradient

    def sample(self, number: int, draw: np.random.Generator) -> list[int]:
        p = self.logits.detach().double().softmax(0).numpy()
        return draw.choice(len(p), number, p=p / p.sum()).tolist()

    def logprob(self, token: int) -> float:
        return float(self.logits.detach().log_softmax(0)[token])

    def probability(self, token: int) -> float:
        return float(self.logits.detach().softmax(0)[token])


def one_batch(turns: list[Turn], algorithm: Algorithm) -> Batch:
    """All turns in one flat row, with their pairs if the algorithm compares pairs."""
    pairs = algorithm.pairs(turns) if isinstance(algorithm, Dpo) else []
    return join([[one] for one in turns], pairs=pairs)
