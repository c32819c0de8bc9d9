"""Micro-batches of one policy in, an optimizer step on its weights out, in this process."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rolecall.algorithms.base import Algorithm, Loss, Outputs
from rolecall.attention import Rows
from rolecall.core import NO_PARENT, Batch
from rolecall.learners.mismatch import Mismatch
from rolecall.learners.optim import Optimizer
from rolecall.models import LanguageModel
from rolecall.packing import one_turn

MOST_SKIPPED = 3  # updates in a row that may be skipped before the run stops


class DivergedError(RuntimeError):
    """Several updates in a row had no finite loss or gradient."""


@dataclass(slots=True)
class Update:
    """What one optimizer step did."""

    grad_norm: float = 0.0  # of the policy, before clipping
    agent_grad_norms: dict[str, float] = field(default_factory=dict)  # exact, before clipping
    lr: float = 0.0
    agent_metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    skipped: str = ""  # the turn that had no finite loss or gradient


class LocalLearner:
    """Trains one policy with the model handle that the engine samples from."""

    def __init__(self, model: LanguageModel, optimizer: Optimizer, *, total_updates: int) -> None:
        self.model = model
        self.config = optimizer
        self.parameters = [p for _, p in model.named_parameters()]
        self.optimizer = optimizer.make(self.parameters)
        self.total_updates = total_updates
        self.num_updates = 0
        self.num_skipped = 0  # in a row

    def forward(self, batch: Batch) -> Outputs:
        """Log-probs of the sampled ids at their sampling temperature."""
        device = self.model.device
        starts = np.flatnonzero(batch.parent == NO_PARENT)
        lengths = np.diff(np.append(starts, len(batch.tokens))).tolist()
        tokens = torch.from_numpy(batch.tokens).long().to(device)
        target = torch.from_numpy(np.flatnonzero(batch.mask)).to(device)
        keep = torch.from_numpy(batch.parent).long().to(device)[target]
        logits = self.model.logits(
            tokens,
            torch.from_numpy(batch.positions).long().to(device),
            layout=Rows(lengths, device=device),
            keep=keep,
        )
        temperature = torch.from_numpy(batch.temperature).to(device)[target]
        sampled = (logits / temperature[:, None]).log_softmax(-1)
        sampled = sampled.gather(-1, tokens[target, None])[:, 0]
        return Outputs(sampled.new_zeros(len(batch.tokens)).index_put((target,), sampled))

    async def update(
        self, steps: list[list[Batch]], algorithm: Algorithm, *, per_agent: bool
    ) -> list[Update]:
        """One optimizer step for each list of micro-batches.

        Loss sums and counts are added over all micro-batches of a step, and the gradient is
        divided once. `per_agent` also measures each agent's gradient, which costs one more copy
        of the gradient where several agents speak with this policy. Raises DivergedError after
        three steps in a row without a finite gradient.
        """
        return [self._step(batches, algorithm, per_agent=per_agent) for batches in steps]

    def _step(self, batches: list[Batch], algorithm: Algorithm, *, per_agent: bool) -> Update:
        update = Update(lr=self.config.lr_at(self.num_updates, total=self.total_updates))
        count = 0.0
        summed: list[Tensor] | None = None
        by_agent = [(agent, list(mine)) for agent, mine in groupby(batches, lambda b: b.agent)]
        apart = per_agent and len(by_agent) > 1
        norms: dict[str, float] = {}
        for agent, mine in by_agent:
            losses = self._backward(mine, algorithm, update, agent=agent)
            count += sum(loss.count for loss in losses)
            if apart:
                taken = self._take_gradient()
                norms[agent] = _norm(taken)
                summed = taken if summed is None else list(torch._foreach_add(summed, taken))
        if summed is not None:
            for parameter, part in zip(self.parameters, summed, strict=True):
                parameter.grad = part
        gradient = [p.grad for p in self.parameters if p.grad is not None]
        torch._foreach_mul_(gradient, 1.0 / count)
        update.grad_norm = _norm(gradient)
        if apart:
            update.agent_grad_norms = {agent: norm / count for agent, norm in norms.items()}
        elif len(by_agent) == 1:
            update.agent_grad_norms = {by_agent[0][0]: update.grad_norm}
        if np.isfinite(update.grad_norm):
            self._apply(gradient, update)
        else:
            self._skip(batches, algorithm, update)
        self.optimizer.zero_grad(set_to_none=True)
        return update

    def _backward(
        self, batches: list[Batch], algorithm: Algorithm, update: Update, *, agent: str
    ) -> list[Loss]:
        losses, mismatch = [], Mismatch()
        for batch in batches:
            outputs = self.forward(batch)
            loss = algorithm.loss(batch, outputs)
            loss.total.backward()
            losses.append(loss)
            mismatch.add(outputs.logprobs.detach(), batch)
        count = sum(loss.count for loss in losses)
        metrics = {"loss": sum(float(loss.total.detach()) for loss in losses) / count}
        for name in losses[0].sums:
            metrics[name] = sum(loss.sums[name] for loss in losses) / count
        update.agent_metrics[agent] = metrics | mismatch.metrics()
        return losses

    def _take_gradient(self) -> list[Tensor]:
        taken = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.parameters]
        self.optimizer.zero_grad(set_to_none=True)
        return taken

    def _apply(self, gradient: list[Tensor], update: Update) -> None:
        if update.grad_norm > self.config.clip:
            torch._foreach_mul_(gradient, self.config.clip / update.grad_norm)
        for group in self.optimizer.param_groups:
            group["lr"] = update.lr
        self.optimizer.step()
        self.num_updates += 1
        self.num_skipped = 0

    def _skip(self, batches: list[Batch], algorithm: Algorithm, update: Update) -> None:
        update.skipped = self._find_broken(batches, algorithm)
        self.num_skipped += 1
        if self.num_skipped >= MOST_SKIPPED:
            raise DivergedError(
                f"{MOST_SKIPPED} updates in a row had no finite loss or gradient; "
                f"the last one broke on turn {update.skipped}"
            )

    def _find_broken(self, batches: list[Batch], algorithm: Algorithm) -> str:
        """The first turn whose own loss or gradient is not finite."""
        for batch in batches:
            for number, turn_id in enumerate(batch.turn_ids):
                self.optimizer.zero_grad(set_to_none=True)
                alone = one_turn(batch, number)
                algorithm.loss(alone, self.forward(alone)).total.backward()
                if not np.isfinite(_norm([p.grad for p in self.parameters if p.grad is not None])):
                    return turn_id
        return "(none alone: only their sum overflows)"

    def save(self, folder: Path) -> None:
        """Weights that `from_pretrained` reads, and the optimizer's state beside them."""
        self.model.save(folder)
        state = {
            "optimizer": self.optimizer.state_dict(),
            "num_updates": self.num_updates,
            "num_skipped": self.num_skipped,
        }
        torch.save(state, folder / "learner.pt")

    def load(self, folder: Path) -> None:
        """Continue from `save`: bit for bit the same weights and moments."""
        state = torch.load(folder / "learner.pt", weights_only=True, map_location=self.model.device)
        self.model.load(folder)
        self.optimizer.load_state_dict(state["optimizer"])
        self.num_updates, self.num_skipped = state["num_updates"], state["num_skipped"]


def _norm(gradient: list[Tensor]) -> float:
    return float(torch.nn.utils.get_total_norm(gradient))
