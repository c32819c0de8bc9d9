"""Puts LoRA weights into a transformers model, and runs several adapters in one flat row.

This file owns PEFT. One adapter at a time is PEFT's own path. Ids of several adapters in one flat
row, or of none, are computed inside `mixed`: sampling only, since a context variable is not seen
by whatever autograd runs later.

Legend: N = tokens in the flat row, R = ranks of all adapters of a layer, one after another.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from peft import LoraConfig, get_peft_model, load_peft_weights, set_peft_model_state_dict
from peft.tuners.lora import Linear, LoraLayer
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn.functional import linear
from transformers import PreTrainedModel

from rolecall.config.schema import Adapter

if TYPE_CHECKING:
    from peft import PeftModel

    from rolecall.models.autograd.function_context import FunctionContext


Parts = tuple[tuple[str, int, float], ...]  # adapter, rank and scaling


class Mixture:
    """Tells which adapter each token of a flat row belongs to."""

    def __init__(self, owners: list[str], counts: list[int], *, device: torch.device) -> None:
        self.names = sorted(set(owners))
        number = torch.tensor([self.names.index(owner) for owner in owners], dtype=torch.long)
        lengths = torch.tensor(counts, dtype=torch.long)
        self.owner = number.repeat_interleave(lengths).to(device)  # [N] an index into names
        self._shares: dict[Parts, Tensor] = {}
        self._ranks: dict[Parts, tuple[Tensor, Tensor]] = {}

    @classmethod
    def over(cls, names: list[str], *, owner: Tensor) -> Mixture:
        """Build a mixture of `owner` [N], indices into `names` on the device, which may change."""
        mixture = cls([], [], device=owner.device)
        mixture.names, mixture.owner = names, owner
        return mixture

    def select(self, keep: Tensor) -> Mixture:
        """Return the mixture of some of the tokens."""
        mixture = self.anew()
        mixture.owner = self.owner[keep]
        return mixture

    def anew(self) -> Mixture:
        """Return a copy for a pass that computes the shares itself, from the owners at its time."""
        mixture = copy(self)
        mixture._shares = {}
        return mixture

    def share(self, parts: Parts) -> Tensor:
        """Compute (adapter, rank, scaling) of each adapter of a layer -> [N, R].

        Ids of a, a, b and parts (a, 2, 0.5), (b, 1, 3.0) give
        [[0.5, 0.5, 0], [0.5, 0.5, 0], [0, 0, 3]]: a token meets the ranks of its own adapter only.
        """
        if parts not in self._shares:  # most layers have the same parts
            owner_R, scaling_R = self._owners_and_scalings(parts)
            self._shares[parts] = (self.owner[:, None] == owner_R) * scaling_R
        return self._shares[parts]

    def _owners_and_scalings(self, parts: Parts) -> tuple[Tensor, Tensor]:
        """Return the owner and the scaling of each rank: [R].

        They are made once, as making them waits for the device.
        """
        if parts not in self._ranks:
            device = self.owner.device
            owner_R = [self.names.index(name) for name, rank, _ in parts for _ in range(rank)]
            scaling_R = [scaling for _, rank, scaling in parts for _ in range(rank)]
            self._ranks[parts] = (
                torch.tensor(owner_R, device=device), torch.tensor(scaling_R, device=device)
            )  # fmt: skip
        return self._ranks[parts]


_mixture: ContextVar[Mixture | None] = ContextVar("rolecall_mixture", default=None)


@contextmanager
def use_mixture(mixture: Mixture) -> Iterator[None]:
    """Forward passes inside compute each token with the adapter that the mixture says."""
    token = _mixture.set(mixture)
    try:
        yield
    finally:
        _mixture.reset(token)


class MixedLinear(Linear):
    """PEFT's LoRA layer, which also takes tokens of several adapters at once.

    The adapters' weights are put side by side, so that a layer costs the same two products for
    any number of adapters, and the share removes what belongs to the others. PEFT's own way
    (`adapter_names`) registers hooks on every layer for every step, and gathers each adapter's
    tokens in every layer.
    """

    def forward(self, x: Tensor, *args: Tensor, **options: Any) -> Tensor:
        mixture = _mixture.get()
        if mixture is None:
            weights = self._only_adapter()
            if weights is None:
                plain: Tensor = super().forward(x, *args, **options)
                return plain
            base: Tensor = self.base_layer(x)
            if base._is_view():  # of a function of ours: autograd lets nobody write into it
                base = base.clone()
            added: Tensor = AddLowRank.apply(base, x, *weights)
            return added
        out: Tensor = self.base_layer(x)
        adapters = self.adapter_weights(mixture)
        if adapters is None:
            return out
        down, up, share = adapters
        delta = linear(linear(x.to(down.dtype), down) * share, up)
        return (out + delta).to(out.dtype)  # in bfloat16 rounded once, as PEFT's own path does

    def low_rank(self, name: str) -> tuple[Tensor, Tensor, float] | None:
        """Return one adapter's weights [R, in] and [out, R] of this layer, and its scaling."""
        if name not in self.lora_A:
            return None
        return self.lora_A[name].weight, self.lora_B[name].weight, self.scaling[name]

    def _only_adapter(self) -> tuple[Tensor, Tensor, float] | None:
        """Return `low_rank` of the active adapter; None if there is none, or several."""
        if self.disable_adapters or self.merged or len(self.active_adapters) != 1:
            return None
        return self.low_rank(self.active_adapters[0])

    def adapter_weights(self, mixture: Mixture) -> tuple[Tensor, Tensor, Tensor] | None:
        """Return the weights [R, in] and [out, R] of the mixture's adapters of this layer.

        With them comes the share [N, R]. None if no adapter has weights here.
        """
        names = [name for name in mixture.names if name in self.lora_A]
        if not names:
            return None
        down = [self.lora_A[name].weight for name in names]
        up = [self.lora_B[name].weight for name in names]
        share = mixture.share(tuple((name, self.r[name], self.scaling[name]) for name in names))
        if len(names) == 1:
            return down[0], up[0], share
        return torch.cat(down), torch.cat(up, dim=1), share


class AddLowRank(Function):
    """Add up(down(x)) * scaling to `out` [..., out] in place, for states x [..., in].

    PEFT's own way makes three more tensors as large as `out`. When they are freed they leave holes
    in glibc's heap into which the next tensor of the same size does not fit, because it asks for
    room to align: an update took twice the memory of its tensors. In bfloat16 that way also keeps
    a float32 copy of `x` for each layer.

    The products take the dtype of `out`. In bfloat16 each rounds to one part in 256 of itself,
    which is less than the rounding of the sum that it is added to.
    """

    @staticmethod
    def forward(
        ctx: FunctionContext, out: Tensor, x: Tensor, down: Tensor, up: Tensor, scaling: float
    ) -> Tensor:
        inner = linear(x, down.to(x.dtype))
        _rows(out).addmm_(_rows(inner), up.to(x.dtype).T, alpha=scaling)
        ctx.save_for_backward(x, inner, down, up)
        ctx.scaling = scaling
        ctx.mark_dirty(out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionContext, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, inner, down, up = ctx.saved_tensors
        by_out = _rows(grad)
        by_inner = (by_out @ up.to(x.dtype)).mul_(ctx.scaling)  # [N, R]
        by_up = by_down = by_x = None
        if ctx.needs_input_grad[3]:
            by_up = (by_out.T @ _rows(inner)).mul_(ctx.scaling).to(up.dtype)
        if ctx.needs_input_grad[2]:
            by_down = (by_inner.T @ _rows(x)).to(down.dtype)
        if ctx.needs_input_grad[1]:
            by_x = (by_inner @ down.to(x.dtype)).view_as(x)
        return grad, by_x, by_down, by_up, None


def _rows(states: Tensor) -> Tensor:
    return states.reshape(-1, states.shape[-1])


def attach(model: PreTrainedModel, adapters: dict[str, Adapter], *, seed: int) -> PeftModel:
    """Wrap the model by PEFT with all adapters; raises ValueError on targets that cannot mix."""
    wrapped: PeftModel | None = None
    for name, adapter in sorted(adapters.items()):
        config = LoraConfig(
            r=adapter.rank,
            lora_alpha=adapter.alpha,
            target_modules=adapter.targets,
            task_type="CAUSAL_LM",
        )
        config._register_custom_module({torch.nn.Linear: MixedLinear})
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            if wrapped is None:
                wrapped = get_peft_model(model, config, adapter_name=name)
            else:
                wrapped.add_adapter(name, config)
    assert wrapped is not None, "no adapters"
    head = wrapped.get_output_embeddings()
    for name, module in wrapped.named_modules():
        if isinstance(module, LoraLayer) and (
            module is head or not isinstance(module, MixedLinear)
        ):
            its_name = name.removeprefix("base_model.model.")
            raise ValueError(f"adapters work on linear layers before the head, not on {its_name!r}")
    return wrapped.eval()


def save(
    model: PeftModel, name: str, folder: Path, weights: dict[str, Tensor] | None = None
) -> None:
    """Write one adapter as PEFT's `from_pretrained` reads it; `weights`: others of its names."""
    # Embeddings are never trained; PEFT would ask the hub for the base to find that out.
    model.save_pretrained(
        folder, selected_adapters=[name], save_embedding_layers=False, state_dict=weights
    )
    for file in sorted((folder / name).iterdir()):
        file.rename(folder / file.name)  # PEFT writes a named adapter one folder deeper
    (folder / name).rmdir()
    # PEFT keeps the names of layers in a set, whose order differs between processes.
    config = folder / "adapter_config.json"
    written = json.loads(config.read_text())
    written["target_modules"] = sorted(written["target_modules"])
    config.write_text(json.dumps(written, indent=2, sort_keys=True))


def load(model: PeftModel, name: str, folder: Path) -> None:
    """Take over the weights that `save` wrote. Raises ValueError where they do not fit."""
    device = next(model.parameters()).device
    weights = load_peft_weights(str(folder), device=str(device))
    missing = set_peft_model_state_dict(model, weights, adapter_name=name)
    if missing.unexpected_keys:
        raise ValueError(f"the adapter in {folder} has other weights: {missing}")
