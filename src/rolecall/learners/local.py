"""Trains one policy in this process: optimizer steps over micro-batches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import groupby
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from rolecall.config.optimizer import Optimizer
from rolecall.interfaces.algorithm import Objective, Outputs
from rolecall.interfaces.learner import Annotation, DivergedError, Learner, Update
from rolecall.learners import logprobs
from rolecall.learners.activations import recomputed
from rolecall.learners.exact import select_rows
from rolecall.learners.optimizer import Stepper
from rolecall.learners.packing import one_turn, pack
from rolecall.learners.sums import Sums
from rolecall.models.attention.layouts import Rows, layout_of
from rolecall.models.language_model import LanguageModel
from rolecall.models.value_head import ValueHead
from rolecall.types import Batch, Floats, Ids, Turn

CPU = torch.device("cpu")
MOST_SKIPPED = 3  # updates in a row that may be skipped before the run stops


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
        checkpoint_activations: bool = False,
        share_prefixes: bool = True,
        offloads: bool = False,
    ) -> None:
        """`offloads`: between updates moments, masters and the reference are not on the device."""
        self.share_prefixes = share_prefixes and model.shares_prefixes
        self.offloads = offloads
        self.model, self.reference = model, reference
        self.checkpoint_activations = checkpoint_activations
        self.parameters = [p for _, p in model.named_parameters()]
        self.stepper = Stepper(self.parameters, optimizer, total=total_updates, module=model.model)
        self.head: ValueHead | None = None
        self.head_stepper: Stepper | None = None
        if head is not None:
            self.head = ValueHead(model.hidden_size).to(model.device)
            self.head_stepper = Stepper(list(self.head.parameters()), head, total=total_updates)
        self.version = 0  # updates that changed the weights
        self.num_skipped = 0  # in a row
        self._move_reference(CPU)
        self._rest()

    def forward(self, batch: Batch, *, entropy: bool = False, reference: bool = False) -> Outputs:
        """Log-probs of the sampled tokens at their sampling temperature, and values with a head."""
        model = self.model
        off = reference and self.reference == "base"
        if reference and isinstance(self.reference, LanguageModel):
            model = self.reference
        device = model.device
        tokens = torch.from_numpy(batch.tokens).long().to(device)
        target = torch.from_numpy(np.flatnonzero(batch.mask)).to(device)
        with_values = self.head is not None and not reference
        ids = (tokens, torch.from_numpy(batch.positions).long().to(device))
        layout = layout_of(batch.parent, batch.positions, device=device)
        keep, again = _reads(batch, device=device)
        chosen = (tokens[target], torch.from_numpy(batch.temperature).to(device)[target])
        rows = max(1, logprobs.LARGEST_LOGITS // model.vocabulary)
        hidden: Tensor | None
        with model.using(adapter_off=off):
            if len(target) > rows and not model.scales_logits:
                hidden = _repeated(model.states(*ids, layout=layout, keep=keep), again)
                sampled, entropies = logprobs.in_chunks(
                    model.head, hidden, *chosen, entropy=entropy, rows=rows
                )
            else:
                logits, hidden = model.forward(
                    *ids, layout=layout, keep=keep, hidden=with_values, adapter_off=off
                )
                logits = _repeated(logits, again)
                sampled, entropies = logprobs.of_logits(logits, *chosen, entropy=entropy)
                hidden = None if hidden is None else _repeated(hidden, again)

        def whole(values: Tensor) -> Tensor:
            return values.new_zeros(len(batch.tokens)).index_put((target,), values)

        found = Outputs(whole(sampled))
        if entropies is not None:
            found.entropies = whole(entropies)
        if with_values:
            assert self.head is not None
            assert hidden is not None
            found.values = whole(self.head(hidden.float())[:, 0])
        return found

    @property
    def num_steps(self) -> int:
        return self.stepper.num_steps

    @property
    def exact(self) -> bool:
        """The same kernels compute what is sampled and what is trained."""
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
        own = what - {"ref_logprobs"}
        self._move_reference(self.model.device, needed="ref_logprobs" in what)
        with torch.no_grad():
            share = self.share_prefixes
            wanted = turns if what else []
            packed = pack(wanted, budget=budget, share=share, by_agent=False) if wanted else []
            for batch in packed:
                columns: dict[Annotation, Tensor] = {}
                if own:
                    found = self.forward(batch)
                    columns |= dict.fromkeys(own - {"values"}, found.logprobs)
                    if "values" in own:
                        assert found.values is not None, "the policy has no value head"
                        columns["values"] = found.values
                if "ref_logprobs" in what:
                    columns["ref_logprobs"] = self.forward(batch, reference=True).logprobs
                for name, column in columns.items():
                    for turn_id, part in _by_turn(batch, column.cpu().numpy()):
                        noted[turn_id][name] = part
        self._move_reference(CPU, needed="ref_logprobs" in what)
        return noted

    async def offload(self) -> None:
        self._rest()

    def _rest(self) -> None:
        if self.offloads:
            for stepper in self._steppers:
                stepper.move_state(CPU)

    async def load_back(self) -> None:
        if self.offloads:
            for stepper in self._steppers:
                stepper.move_state(self.model.device)

    def _move_reference(self, device: torch.device, *, needed: bool = True) -> None:
        if self.offloads and needed and isinstance(self.reference, LanguageModel):
            self.reference.model.to(device)

    async def probe(self, tokens: Ids) -> Floats:
        ids = torch.from_numpy(tokens).long().to(self.model.device)
        layout = Rows([len(ids)], device=self.model.device)
        with torch.no_grad():
            logits = self.model.logits(
                ids, layout.position, layout=layout, keep=torch.arange(len(ids) - 1).to(ids)
            )
            found = logits.log_softmax(-1).gather(-1, ids[1:, None])[:, 0]
        return np.asarray(found.cpu().numpy(), dtype=np.float32)

    async def update(
        self, steps: list[list[Batch]], algorithm: Objective, *, per_agent: bool
    ) -> list[Update]:
        """One optimizer step for each list of micro-batches.

        Loss sums and counts are added over all micro-batches of a step, and the gradient is
        divided once. `per_agent` also measures each agent's gradient, which costs one more copy
        of the gradient where several agents speak with this policy. Raises DivergedError after
        three steps in a row without a finite gradient.
        """
        updates = [self._step(batches, algorithm, per_agent=per_agent) for batches in steps]
        self.version += any(not update.skipped for update in updates)
        return updates

    def _step(self, batches: list[Batch], algorithm: Objective, *, per_agent: bool) -> Update:
        sums: dict[str, Sums] = defaultdict(Sums)
        summed: list[Tensor] | None = None
        by_agent = [(agent, list(mine)) for agent, mine in groupby(batches, lambda b: b.agent)]
        apart = per_agent and len(by_agent) > 1
        norms: dict[str, float] = {}
        for agent, mine in by_agent:
            for batch in mine:
                self._backward(batch, algorithm, sums)
            if apart:
                taken = self._take_gradient()
                norms[agent] = _norm(taken)
                if summed is None:
                    summed = taken
                else:
                    torch._foreach_add_(summed, taken)
                del taken  # or the next agent's backward pass would find two beside its own
        if summed is not None:
            for parameter, part in zip(self.stepper.masters, summed, strict=True):
                parameter.grad = part
        count = max(sum(found.count for found in sums.values()), 1.0)  # all may be rejected
        # Both norms before either step: a policy must not move where its value head cannot.
        measured = [stepper.measure(count) for stepper in self._steppers]
        finite = all(measured)
        for stepper in self._steppers:
            if finite:
                stepper.apply()
            else:
                stepper.forget()
        update = Update(grad_norm=self.stepper.grad_norm, lr=self.stepper.lr)
        update.agent_metrics = {agent: found.metrics() for agent, found in sums.items()}
        if apart:
            update.agent_grad_norms = {agent: norm / count for agent, norm in norms.items()}
        elif len(sums) == 1:
            update.agent_grad_norms = dict.fromkeys(sums, update.grad_norm)
        self.num_skipped = 0 if finite else self.num_skipped + 1
        if not finite:
            self._skip(batches, algorithm, update)
        return update

    def _backward(self, batch: Batch, algorithm: Objective, sums: dict[str, Sums]) -> None:
        with recomputed(self.model.model) if self.checkpoint_activations else nullcontext():
            outputs = self.forward(batch, entropy=algorithm.entropy > 0)
        losses = []
        for part in batch.parts or [batch]:
            loss = algorithm.loss(part, outputs)
            sums[part.agent].add(part, loss, outputs.logprobs.detach())
            losses.append(loss.total)
        torch.stack(losses).sum().backward()

    @property
    def _steppers(self) -> list[Stepper]:
        return [self.stepper] if self.head_stepper is None else [self.stepper, self.head_stepper]

    def _take_gradient(self) -> list[Tensor]:
        masters = self.stepper.masters
        taken = [torch.zeros_like(p) if p.grad is None else p.grad for p in masters]
        self.stepper.optimizer.zero_grad(set_to_none=True)
        return taken

    def _skip(self, batches: list[Batch], algorithm: Objective, update: Update) -> None:
        update.skipped = self._find_broken(batches, algorithm)
        if self.num_skipped >= MOST_SKIPPED:
            raise DivergedError(
                f"{MOST_SKIPPED} updates in a row had no finite loss or gradient; "
                f"the last one broke on turn {update.skipped}"
            )

    def _find_broken(self, batches: list[Batch], algorithm: Objective) -> str:
        """The first turn whose own loss or gradient is not finite."""
        for part in [part for batch in batches for part in batch.parts or [batch]]:
            for number, turn_id in enumerate(part.turn_ids):
                alone = one_turn(part, number)
                outputs = self.forward(alone, entropy=algorithm.entropy > 0)
                algorithm.loss(alone, outputs).total.backward()
                whole = [p.grad for s in self._steppers for p in s.masters if p.grad is not None]
                norm = _norm(whole)
                for stepper in self._steppers:
                    stepper.forget()
                if not np.isfinite(norm):
                    return turn_id
        return "(none alone: only their sum overflows)"

    @property
    def num_bytes(self) -> int:  # type: ignore[override]
        return sum(parameter.nbytes for parameter in self.parameters)

    async def write_weights(self, folder: Path) -> None:
        self.model.write_weights(folder)

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
        torch.save(state, folder / "learner.pt")

    def load(self, folder: Path) -> None:
        """Continue from `save`: bit for bit the same weights and moments."""
        state = torch.load(folder / "learner.pt", weights_only=True, map_location=self.model.device)
        self.model.load(folder)
        self.stepper.load_state_dict(state["stepper"])
        self.version, self.num_skipped = state["version"], state["num_skipped"]
        if self.head is not None and self.head_stepper is not None:
            self.head.load_state_dict(state["head"])
            self.head_stepper.load_state_dict(state["head_stepper"])
        self._rest()


def _reads(batch: Batch, *, device: torch.device) -> tuple[Tensor, Tensor | None]:
    """The distinct indices that predict sampled tokens, and for each token [M] which of them.

    Turns that share a prompt have their first tokens from one place: it is computed once.
    """
    distinct, inverse = np.unique(batch.parent[batch.mask > 0], return_inverse=True)
    keep = torch.from_numpy(distinct).long().to(device)
    every = len(distinct) == len(inverse) and bool((np.diff(inverse) > 0).all())
    return keep, None if every else torch.from_numpy(inverse).long().to(device)


def _repeated(rows: Tensor, again: Tensor | None) -> Tensor:
    return rows if again is None else select_rows(rows, again)


def _by_turn(batch: Batch, column: Floats) -> Iterator[tuple[str, Floats]]:
    """The sampled tokens' numbers [T] of each turn of a batch, from a column [N]."""
    sampled = np.flatnonzero(batch.mask)  # those of one turn stand together, in the turns' order
    ends = np.bincount(batch.turn[sampled]).cumsum()[:-1]
    parts = np.split(column[sampled].astype(np.float32), ends)
    yield from zip(batch.turn_ids, parts, strict=True)


def _norm(gradient: list[Tensor]) -> float:
    return float(torch.nn.utils.get_total_norm(gradient))
