"""Trains one rank's copy of a model together with those of the other ranks.

Every method is called on all ranks at once: each is a sequence of collectives that all ranks enter
in the same order.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed
from torch.nn import Parameter

from rolecall.core.interfaces.algorithm import Objective, Outputs
from rolecall.core.interfaces.learner import Annotation, Rendezvous
from rolecall.core.types import Batch, Floats
from rolecall.learners.local import LocalLearner, choose_entropy
from rolecall.learners.ranks.dealing import IDLE, is_idle
from rolecall.learners.ranks.spec import Built
from rolecall.learners.sums import Sums
from rolecall.models.weight_transfer import Shapes, TransferError

BUCKET = 2**26  # most numbers that are summed over the ranks in one message


class Member(LocalLearner):
    """One rank's part of a policy's learner: a whole copy of the model."""

    def _backward(self, batch: Batch, algorithm: Objective, sums: dict[str, Sums]) -> None:
        if is_idle(batch):
            outputs = self.forward(batch, entropy=choose_entropy(algorithm))
            torch.stack(nothing(outputs)).sum().backward()
        else:
            super()._backward(batch, algorithm, sums)

    def _exchanged(self, count: float, *, apart: bool) -> float:
        """Exchange a message with the counts, and one with all gradients (up to `BUCKET`)."""
        steppers = self.steppers[1:] if apart else self.steppers
        parameters = [p for s in steppers for p in s.masters if is_whole(p)]
        has_gradient = [float(p.grad is not None) for p in parameters]
        message = torch.tensor(
            [count, *has_gradient], dtype=torch.float64, device=self.model.device
        )
        distributed.all_reduce(message)
        total, *counts = message.tolist()
        moved = [p for p, ranks in zip(parameters, counts, strict=True) if ranks]
        for parameter in moved:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        sum_over_ranks([p.grad for p in moved if p.grad is not None])
        return float(total)

    def _take_gradient(self) -> list[Tensor | None]:
        """Take the gradients' sums over all ranks; None where no rank has a gradient."""
        masters, gradients = self.stepper.masters, super()._take_gradient()
        there = [float(gradient is not None) for gradient in gradients]
        counts = torch.tensor(there, dtype=torch.float64, device=self.model.device)
        distributed.all_reduce(counts)
        summed = [
            torch.zeros_like(parameter)
            if gradient is None and ranks and is_whole(parameter)
            else gradient
            for parameter, gradient, ranks in zip(masters, gradients, counts.tolist(), strict=True)
        ]
        sum_over_ranks(
            [gradient for gradient in summed if gradient is not None and is_whole(gradient)]
        )
        return summed

    def step(
        self, by_agent: list[tuple[str, list[Batch]]], algorithm: Objective, *, apart: bool
    ) -> dict[str, Any]:
        """Take one optimizer step, and return what this rank knows of it."""
        finite, sums, norms = self.optimize(by_agent, algorithm, apart=apart)
        return {
            "finite": finite,
            "sums": {agent: totals.on_host() for agent, totals in sums.items()},
            "norms": norms,
            "grad_norm": self.stepper.grad_norm,
            "lr": self.stepper.lr,
            "num_steps": self.num_steps,
        }

    def annotate_own(
        self, batches: list[Batch], what: set[Annotation]
    ) -> dict[str, dict[Annotation, Floats]]:
        values = self.annotate_packed(batches, what)
        values.pop(IDLE, None)
        return values

    def build(self) -> Built:
        return Built(self.num_bytes, self.exact, self.reference is not None, self.shares_prefixes)

    def write(self, folder: Path) -> None:
        if distributed.get_rank() == 0:
            self.model.write_weights(folder)

    def hand_over(self, at: Rendezvous) -> str:
        """Send all weights; why that failed, or ""."""
        gathered = self.gather_weights()
        try:
            shares = at.shares_device and self.model.device.type == "cuda"
            if shares or distributed.get_rank() == 0:
                self.sender.send(at, self.shapes, gathered)
        except TransferError as error:
            return str(error)
        finally:
            for _ in gathered:  # the others wait for this rank's shares
                pass
        return ""

    def written(self, parameter: Tensor) -> torch.dtype:
        """Return the dtype in which a weight is published."""
        return parameter.dtype

    @property
    def shapes(self) -> Shapes:
        """Return the shapes of what `gathered` yields, by name."""
        return {name: (self.written(p), p.shape) for name, p in self.model.named_parameters()}

    def gather_weights(self) -> Iterator[Tensor]:
        """Yield every weight whole, one after another, in the order of the parameters."""
        for _, parameter in self.model.named_parameters():
            yield parameter.detach()

    def save(self, folder: Path) -> None:
        """Save as the embedded learner does, which can go on from it."""
        if distributed.get_rank() == 0:
            super().save(folder)


def nothing(outputs: Outputs) -> list[Tensor]:
    """Losses of 0 whose gradients, of 0, reach every parameter that a batch can reach."""
    columns = (outputs.logprobs, outputs.entropies, outputs.values)
    return [0.0 * column.sum() for column in columns if column is not None and column.requires_grad]


def is_whole(tensor: Tensor) -> bool:
    """Return whether it is not a shard of a larger tensor."""
    return type(tensor) in (Tensor, Parameter)


def sum_over_ranks(tensors: list[Tensor]) -> None:
    """Sum each in place over all ranks, which then hold the same bits."""
    bucket: list[Tensor] = []
    room = BUCKET
    for tensor in [*tensors, None]:
        if bucket and (tensor is None or tensor.numel() > room):
            flat = torch.cat([member.flatten() for member in bucket])
            distributed.all_reduce(flat)
            sizes = [member.numel() for member in bucket]
            for member, summed in zip(bucket, flat.split(sizes), strict=True):
                member.copy_(summed.view_as(member))
            bucket, room = [], BUCKET
        if tensor is not None:
            bucket.append(tensor)
            room -= tensor.numel()
