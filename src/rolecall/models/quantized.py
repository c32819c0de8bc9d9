"""Holds the linear layers of a frozen base in 8 or 4 bits, as bitsandbytes rounds them.

A layer's weights are unpacked whenever it computes, forward and backward, and never kept: QLoRA
(2305.14314). bitsandbytes' own layers do so for many tokens only; for one, or in 8 bits on a GPU,
they compute in other ways, some of which depend on what is computed beside it. Here sampler and
learner compute the same. CUDA's kernels have not been run by this.

Legend: O = outputs of a layer, I = its inputs.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import Linear, Parameter
from torch.nn.functional import linear

from rolecall.core.errors import first_line
from rolecall.core.optional import optional

if TYPE_CHECKING:
    from types import ModuleType

    from transformers import PreTrainedModel

    from rolecall.models.autograd.function_context import FunctionContext


# It tells of kernels for its own layers, which are not used here.
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)

Quantization = Literal["none", "8bit", "4bit"]
BLOCK, OUTER = 64, 256  # weights that share a constant; constants that share one themselves
# The largest error of a weight, as a share of the largest of its row or block: half of the widest
# gap between two numbers of NF4, and half a step of 127; and what rounding of constants adds.
WORST = {"4bit": 0.18, "8bit": 0.006}


class QuantizedLinear(Linear):
    """A linear layer whose weights take a half or one byte each, and cannot be trained."""

    scale: Tensor  # [O] of 8 bits
    absmax: Tensor  # constants of the blocks, and of 4 bits all below
    outer_absmax: Tensor
    code: Tensor
    outer_code: Tensor
    offset: Tensor

    def __init__(self, full: Linear, kind: Quantization, *, device: torch.device) -> None:
        """Round the weights of `full` [O, I] on the device."""
        super().__init__(full.in_features, full.out_features, bias=False, device="meta")
        self.kind, self.bias = kind, full.bias
        weight = full.weight.detach().to(device)
        if kind == "8bit":
            functional = bitsandbytes().functional
            packed, scale, _ = functional.int8_vectorwise_quant(weight.half().contiguous())
            self.register_buffer("scale", scale.float() / 127, persistent=False)  # [O]
        else:
            packed = self._in_four_bits(weight)
        self.weight = Parameter(packed, requires_grad=False)

    def _in_four_bits(self, weight: Tensor) -> Tensor:
        """Quantize to NF4 with constants that are rounded too: two numbers a byte."""
        packed, state = bitsandbytes().functional.quantize_4bit(
            weight.contiguous(), blocksize=BLOCK, compress_statistics=True, quant_type="nf4"
        )
        constants = {
            "code": state.code, "absmax": state.absmax, "offset": state.offset,
            "outer_code": state.state2.code, "outer_absmax": state.state2.absmax,
        }  # fmt: skip
        for name, tensor in constants.items():
            self.register_buffer(name, tensor, persistent=False)
        return packed

    def unpack(self, dtype: torch.dtype) -> Tensor:
        """Unpack the weight: [O, I]."""
        if self.kind == "8bit":
            return self.weight.to(dtype, copy=True).mul_(self.scale[:, None])
        functional, number = bitsandbytes().functional, self.out_features * self.in_features
        # A row a block: on a CPU rows of other lengths are unpacked with constants of their
        # neighbours (bitsandbytes 0.50), though blocks are counted through all rows.
        shape = (1, number) if number % BLOCK else (number // BLOCK, BLOCK)
        outer = functional.QuantState(
            absmax=self.outer_absmax, code=self.outer_code, blocksize=OUTER, dtype=torch.float32
        )
        state = functional.QuantState(
            absmax=self.absmax, shape=torch.Size(shape), code=self.code, blocksize=BLOCK,
            quant_type="nf4", dtype=dtype, offset=self.offset, state2=outer,
        )  # fmt: skip
        weight: Tensor = functional.dequantize_4bit(self.weight, state)
        return weight.view(self.out_features, self.in_features)

    def forward(self, input: Tensor) -> Tensor:
        out: Tensor = _Product.apply(input, self)
        return out

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, {self.kind}"


class _Product(Function):
    """Nothing is kept for the backward pass, which unpacks the weights again."""

    @staticmethod
    def forward(ctx: FunctionContext, x: Tensor, layer: QuantizedLinear) -> Tensor:
        ctx.layer = layer
        return linear(x, layer.unpack(x.dtype), layer.bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: FunctionContext, grad: Tensor) -> tuple[Tensor, None]:
        return grad @ ctx.layer.unpack(grad.dtype), None


def bitsandbytes() -> ModuleType:
    """Import bitsandbytes; raises ConfigError if it is not installed."""
    return optional("bitsandbytes", extra="quantize")


def linear_layers(model: PreTrainedModel) -> dict[str, Linear]:
    """Return the layers of a transformers model that are held in fewer bits: all but the head."""
    head = model.get_output_embeddings()
    return {
        name: module
        for name, module in model.named_modules()
        if type(module) is Linear and module is not head
    }


def num_bytes(model: PreTrainedModel, kind: Quantization) -> float:
    """Return the bytes of the layers' weights and constants; the model may be a meta one."""
    layers = linear_layers(model).values()
    count = sum(layer.weight.numel() for layer in layers)
    if kind == "8bit":
        return count + 4 * sum(layer.out_features for layer in layers)
    return count * (1 / 2 + 1 / BLOCK + 4 / (BLOCK * OUTER))


def quantize(model: PreTrainedModel, kind: Quantization, *, device: torch.device) -> None:
    """Replace the linear layers of a model, in place; the new ones are on the device.

    Raises ValueError for a model without any.
    """
    layers = linear_layers(model)
    if not layers:
        raise ValueError(f"none of its layers can be held in {kind}: write quantization=none")
    for name, layer in layers.items():
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, QuantizedLinear(layer, kind, device=device))
    if device.type == "cpu":  # all weights were read into one piece of memory, which any one keeps
        for parameter in model.parameters():
            parameter.data = parameter.data.clone()


@torch.no_grad()
def check_device(kind: Quantization, device: torch.device) -> None:
    """Check a device's kernels; raises ValueError if they are missing or round differently."""
    bitsandbytes()  # where it is missing, that is the error
    full = Linear(40, 96, bias=False)  # rows that are no whole blocks
    random = torch.Generator().manual_seed(0)
    full.weight.copy_(torch.randn(96, 40, generator=random))
    try:
        unpacked = QuantizedLinear(full, kind, device=device).unpack(torch.float32).cpu()
    except Exception as error:  # whatever a library without kernels for the device raises
        problem = first_line(error)
    else:
        apart = (unpacked - full.weight).abs() / full.weight.abs().amax(1, keepdim=True)
        if float(apart.max()) <= WORST[kind]:
            return
        problem = "it unpacks other numbers"
    raise ValueError(
        f"bitsandbytes cannot hold weights in {kind} on {device} ({problem}): write "
        "quantization=none, or another device"
    )
