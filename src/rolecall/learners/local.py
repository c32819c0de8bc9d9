"""Trains one policy in this process: optimizer steps over micro-batches."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from itertools import groupby
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from rolecall.config.optimizer import Optimizer
from rolecall.core.interfaces.algorithm import Objective, Outputs
from rolecall.core.interfaces.learner import Annotation, Learner, Rendezvous, Update
from rolecall.core.types import Batch, Floats, Ids, Turn
from rolecall.learners.activations import recompute_activations
from rolecall.learners.forward import LogProbs
from rolecall.learners.logprobs import Entropy
from rolecall.learners.optimizer import Stepper, total_norm
from rolecall.learners.packing import pack, select_turn
from rolecall.learners.sums import Sums
from rolecall.learners.updates import check_diverged, is_far, make_update
from rolecall.models.language_model import LanguageModel
from rolecall.models.value_head import ValueHead
from rolecall.models.weight_transfer import Sender

CPU = torch.device("cpu")


class LocalLearner(Learner):
    """Trains one policy, and its value head if it has one.

    `model` is the handle that the engine samples from, unless the engine has a copy. `reference`
    is what KL and DPO compare with: a frozen model, or "base" for an adapter switched off.
    """

    def __init__(
        self,
        model: LanguageModel,
        optimizer: Optimizer,
        *,
        total_updates: int,
        reference: LanguageModel | Literal["base"] | None = None,
        head: Optimizer | None = None,
        heads: int = 1,
        checkpoint_activations: bool = False,
        share_prefixes: bool = True,
        offloads: bool = False,
        own_pass: LogProbs | None = None,
        reference_pass: LogProbs | None = None,
    ) -> None:
        """`offloads`: between updates moments, masters and the reference are not on the device.

        `own_pass` and `reference_pass`: of `model` and `reference`, where they are sharded.
        """
        self.share_prefixes = share_prefixes and model.shares_prefixes
        self.offloads = offloads
        self.model, self.reference = model, reference
        self.own_pass = own_pass or LogProbs(model)
        self.reference_pass = reference_pass
        if reference_pass is None and isinstance(reference, LanguageModel):
            self.reference_pass = LogProbs(reference)
        self.checkpoint_activations = checkpoint_activations
        self.parameters = [p for _, p in model.named_parameters()]
        self.stepper = Stepper(self.parameters, optimizer, total=total_updates, module=model.model)
        self.head: ValueHead | None = None
        self.head_stepper: Stepper | None = None
        if head is not None:
            self.head = ValueHead(model.hidden_size, heads).to(model.device)
            self.head_stepper = Stepper(list(self.head.parameters()), head, total=total_updates)
        # The reference's weights: of an adapter, or those that a reference model has taken over.
        self.refreshed: dict[str, Tensor] | None = None
        self.version = 0  # updates that changed the weights
        self.num_skipped = 0  # in a row
        self.sender = Sender(model.device)
        self._move_reference(CPU)
        self._rest()

    def forward(self, batch: Batch, *, entropy: Entropy = None, reference: bool = False) -> Outputs:
        """Return the log-probs of the sampled tokens at their sampling temperature, and values with
        a head.
        """
        using = (self.reference_pass if reference else None) or self.own_pass
        with_values = self.head is not None and not reference
        sampled, entropies, states = using(
            batch,
            entropy=entropy,
            hidden=with_values,
            adapter_off=reference and self.reference == "base" and self.refreshed is None,
        )
        outputs = Outputs(using.spread(batch, sampled))
        if entropies is not None:
            outputs.entropies = using.spread(batch, entropies)
        if with_values:
            assert self.head is not None
            assert states is not None
            every = self.head(states.float())  # [M, heads]
            values = torch.stack([using.spread(batch, column) for column in every.T])
            index = torch.from_numpy(batch.index).long().to(values.device)
            outputs.values = values.gather(0, index.clamp(max=len(values) - 1)[None])[0]
        return outputs

    @property
    def num_steps(self) -> int:
        return self.stepper.num_steps

    @property
    def exact(self) -> bool:
        """Return whether the same kernels compute what is sampled and what is trained."""
        model = self.model
        return model.samples_here and model.device.type == "cpu" and model.is_float32

    @property
    def shares_prefixes(self) -> bool:
        return self.model.shares_prefixes

    async def annotate(
        self, turns: list[Turn], what: set[Annotation], *, budget: int
    ) -> dict[str, dict[Annotation, Floats]]:
        noted: dict[str, dict[Annotation, Floats]] = {turn.id: {} for turn in turns}
        if "ref_logprobs" in what and self.reference is None:
            raise ValueError("the policy has no reference")
        if turns and what:
            packed = pack(turns, budget=budget, share=self.share_prefixes, by_agent=False)
            for turn_id, columns in self.annotate_packed(packed, what).items():
                noted[turn_id] = columns
        return noted

    def annotate_packed(
        self, batches: list[Batch], what: set[Annotation]
    ) -> dict[str, dict[Annotation, Floats]]:
        """Return what `annotate` does, for packed turns."""
        noted: dict[str, dict[Annotation, Floats]] = defaultdict(dict)
        own = what - {"ref_logprobs"}
        self._move_reference(self.model.device, needed="ref_logprobs" in what)
        with torch.no_grad():
            for batch in batches:
                columns: dict[Annotation, Tensor] = {}
                if own:
                    outputs = self.forward(batch)
                    columns |= dict.fromkeys(own - {"values"}, outputs.logprobs)
                    if "values" in own:
                        assert outputs.values is not None, "the policy has no value head"
                        columns["values"] = outputs.values
                if "ref_logprobs" in what:
                    with self._as_reference():
                        columns["ref_logprobs"] = self.forward(batch, reference=True).logprobs
                for name, column in columns.items():
                    for turn_id, values in _by_turn(batch, column.cpu().numpy()):
                        noted[turn_id][name] = values
        self._move_reference(CPU, needed="ref_logprobs" in what)
        return noted

    async def refresh_reference(self) -> None:
        if self.reference is None:
            raise ValueError("the policy has no reference")
        self._refer_to({name: tensor.clone() for name, tensor in self.model.weights().items()})

    def _refer_to(self, weights: dict[str, Tensor]) -> None:
        if isinstance(self.reference, LanguageModel):
            self.reference.take(weights)
            weights = self.reference.weights()
        self.refreshed = weights

    @contextmanager
    def _as_reference(self) -> Iterator[None]:
        """Give an adapter the weights of its refreshed reference inside the context."""
        if self.refreshed is None or self.reference != "base":
            yield
            return
        own = {name: tensor.clone() for name, tensor in self.model.weights().items()}
        self.model.take(self.refreshed)
        try:
            yield
        finally:
            self.model.take(own)

    async def offload(self) -> None:
        self._rest()

    def _rest(self) -> None:
        if self.offloads:
            for stepper in self.steppers:
                stepper.move_state(CPU)

    async def load_back(self) -> None:
        if self.offloads:
            for stepper in self.steppers:
                stepper.move_state(self.model.device)

    def _move_reference(self, device: torch.device, *, needed: bool = True) -> None:
        if self.offloads and needed and isinstance(self.reference, LanguageModel):
            self.reference.model.to(device)

    async def probe(self, tokens: Ids) -> Floats:
        with torch.no_grad():
            logprobs = self.model.logprobs(torch.from_numpy(tokens).long().to(self.model.device))
        return np.asarray(logprobs.cpu().numpy(), dtype=np.float32)

    async def update(
        self, steps: list[list[Batch]], algorithm: Objective, *, per_agent: bool
    ) -> list[Update]:
        """Take one optimizer step for each list of micro-batches.

        Loss sums and counts are added over all micro-batches of a step, and the gradient is
        divided once. `per_agent` also measures each agent's gradient, which costs one more copy
        of the gradient where several agents speak with this policy. Raises DivergedError after
        three steps in a row without a finite gradient.
        """
        updates: list[Update] = []
        for batches in steps:
            updates.append(self._step(batches, algorithm, per_agent=per_agent))
            if is_far(updates[-1], algorithm):
                break
        self.version += any(not update.skipped for update in updates)
        return updates

    def _step(self, batches: list[Batch], algorithm: Objective, *, per_agent: bool) -> Update:
        by_agent = [(agent, list(mine)) for agent, mine in groupby(batches, lambda b: b.agent)]
        finite, sums, norms = self.optimize(
            by_agent, algorithm, apart=per_agent and len(by_agent) > 1
        )
        update = make_update(self.stepper.grad_norm, self.stepper.lr, sums, norms)
        self.num_skipped = 0 if finite else self.num_skipped + 1
        if not finite:
            update.skipped = self.find_broken(batches, algorithm)
            check_diverged(self.num_skipped, update.skipped)
        return update

    def optimize(
        self, by_agent: list[tuple[str, list[Batch]]], algorithm: Objective, *, apart: bool
    ) -> tuple[bool, dict[str, Sums], dict[str, float]]:
        """Gradients of these micro-batches, then one step, unless they are not finite.

        Returns whether they were, the sums of each agent and, with `apart`, its gradient's norm.
        """
        sums: dict[str, Sums] = defaultdict(Sums)
        summed: list[Tensor | None] | None = None
        norms: dict[str, float] = {}
        for agent, mine in by_agent:
            for batch in mine:
                self._backward(batch, algorithm, sums)
            if apart:
                gradient = self._take_gradient()
                norms[agent] = total_norm([share for share in gradient if share is not None])
                summed = gradient if summed is None else list(map(_added, summed, gradient))
                del gradient  # or the next agent's backward pass would find two beside its own
        count = self._exchanged(sum(totals.count for totals in sums.values()), apart=apart)
        if summed is not None:
            for parameter, share in zip(self.stepper.masters, summed, strict=True):
                parameter.grad = share
        count = max(count, 1.0)  # all may be rejected
        # Both norms before either step: a policy must not move where its value head cannot.
        measured = [stepper.measure(count) for stepper in self.steppers]
        finite = all(measured)
        for stepper in self.steppers:
            if finite:
                stepper.apply()
            else:
                stepper.forget()
        return finite, sums, {agent: norm / count for agent, norm in norms.items()}

    def _exchanged(self, count: float, *, apart: bool) -> float:
        """Sum gradients and `count` over the ranks, where there are several.

        `apart`: the model's gradients have been taken, agent after agent.
        """
        return count

    def _backward(self, batch: Batch, algorithm: Objective, sums: dict[str, Sums]) -> None:
        with (
            recompute_activations(self.model.model)
            if self.checkpoint_activations
            else nullcontext()
        ):
            outputs = self.forward(batch, entropy=choose_entropy(algorithm))
        losses = self._also(outputs)
        for own in batch.parts or [batch]:
            loss = algorithm.loss(own, outputs)
            sums[own.agent].add(own, loss, outputs)
            losses.append(loss.total)
        torch.stack(losses).sum().backward()

    def _also(self, outputs: Outputs) -> list[Tensor]:
        """Losses of 0 beside that of the algorithm."""
        return []

    @property
    def steppers(self) -> list[Stepper]:
        return [self.stepper] if self.head_stepper is None else [self.stepper, self.head_stepper]

    def _take_gradient(self) -> list[Tensor | None]:
        """Take the gradients of the model; None stays None, so that AdamW moves nothing there."""
        gradient = [parameter.grad for parameter in self.stepper.masters]
        self.stepper.optimizer.zero_grad(set_to_none=True)
        return gradient

    def find_broken(self, batches: list[Batch], algorithm: Objective) -> str:
        """Return the first turn whose own loss or gradient is not finite."""
        for own in [own for batch in batches for own in batch.parts or [batch]]:
            for number, turn_id in enumerate(own.turn_ids):
                alone = select_turn(own, number)
                outputs = self.forward(alone, entropy=choose_entropy(algorithm))
                algorithm.loss(alone, outputs).total.backward()
                norm = sum(stepper.summed_norm() for stepper in self.steppers)
                for stepper in self.steppers:
                    stepper.forget()
                if not np.isfinite(norm):
                    return turn_id
        return "(none alone: only their sum overflows)"

    @property
    def num_bytes(self) -> int:  # type: ignore[override]
        return sum(parameter.nbytes for parameter in self.parameters)

    async def write_weights(self, folder: Path) -> None:
        self.model.write_weights(folder)

    async def send(self, at: Rendezvous) -> None:
        weights = self.model.weights()
        shapes = {name: (weight.dtype, weight.shape) for name, weight in weights.items()}
        await asyncio.to_thread(self.sender.send, at, shapes, weights.values())

    def save(self, folder: Path) -> None:
        """Weights that `from_pretrained` reads, and the optimizer's state beside them."""
        self.model.save(folder)
        state = {
            "stepper": self.stepper.state_dict(),
            "version": self.version,
            "num_skipped": self.num_skipped,
        }
        if self.head is not None and self.head_stepper is not None:
            state |= {
                "head": self.head.state_dict(),
                "head_stepper": self.head_stepper.state_dict(),
            }
        if self.refreshed is not None:
            state["reference"] = self.refreshed
        torch.save(state, folder / "learner.pt")

    def load(self, folder: Path) -> None:
        """Continue from `save`: bit for bit the same weights and moments."""
        state = torch.load(folder / "learner.pt", weights_only=True, map_location=self.model.device)
        self.model.load(folder)
        self.stepper.load_state_dict(state["stepper"])
        self.version, self.num_skipped = state["version"], state["num_skipped"]
        if "reference" in state:
            self._refer_to(state["reference"])
        if self.head is not None and self.head_stepper is not None:
            self.head.load_state_dict(state["head"])
            self.head_stepper.load_state_dict(state["head_stepper"])
        self._rest()

    def take_over(self, folder: Path, *, moments: bool) -> None:
        state = torch.load(folder / "learner.pt", weights_only=True, map_location=self.model.device)
        self.model.load(folder)
        self.stepper.load_state_dict(state["stepper"])
        self.stepper.begin(moments=moments)
        self._rest()

    def take_over_head(self, folder: Path, *, moments: bool) -> bool:
        file = folder / "learner.pt"
        if self.head is None or self.head_stepper is None or not file.is_file():
            return False
        state = torch.load(file, weights_only=True, map_location=self.model.device)
        if "head" not in state:
            return False
        self.head.load_state_dict(state["head"])
        self.head_stepper.load_state_dict(state["head_stepper"])
        self.head_stepper.begin(moments=moments)
        self._rest()
        return True


def choose_entropy(algorithm: Objective) -> Entropy:
    """Return what an update needs: a gradient where the loss has a bonus, else what is recorded."""
    return "gradient" if algorithm.entropy > 0 else "value"


def _added(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    """Add the second gradient to the first one, in place."""
    if one is None or other is None:
        return other if one is None else one
    return one.add_(other)


def _by_turn(batch: Batch, column: Floats) -> Iterator[tuple[str, Floats]]:
    """Yield the sampled tokens' numbers [T] of each turn of a batch, from a column [N]."""
    sampled = np.flatnonzero(batch.mask)  # those of one turn stand together, in the turns' order
    ends = np.bincount(batch.turn[sampled]).cumsum()[:-1]
    parts = np.split(column[sampled].astype(np.float32), ends)
    yield from zip(batch.turn_ids, parts, strict=True)
