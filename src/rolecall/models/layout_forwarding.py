"""Brings a layout to the attention of layers that do not hand on what they are called with.

Layers of StableLM and Nemotron call their attention with the arguments that they name themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.nn import Module

from rolecall.models.attention import layouts
from rolecall.models.cpu.fused_layers import put_before
from rolecall.models.language_model import get_layers

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel


def carry(model: PreTrainedModel) -> None:
    """Change the layers of a model in place."""
    put_before(list(get_layers(model)), Carrying)


class Carrying(Module):
    """Stands before a layer's class, and also brings the layout when a backward pass repeats it."""

    def forward(self, *args: Tensor, **options: Any) -> Any:
        with layouts.use_layout(options.pop("layout", None)):
            return super().forward(*args, **options)
