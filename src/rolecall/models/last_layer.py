"""Makes the last layer of a model compute only what the head reads.

Of the tokens of a prompt the last layer needs keys and values alone: nobody reads what comes out
there. With long prompts that is most of the layer's work.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import Tensor
from torch.nn import Module

from rolecall.models.cpu.fused_layers import put_before

if TYPE_CHECKING:
    from transformers import PreTrainedModel


PARTS = ("input_layernorm", "self_attn", "post_attention_layernorm", "mlp")


def trim(model: PreTrainedModel) -> Callable[[], None] | None:
    """Change the last layer in place. Return what changes it back; None if it has other parts."""
    layers = getattr(model.get_decoder(), "layers", None)
    if not layers or not all(hasattr(layers[-1], name) for name in PARTS):
        return None
    return put_before([layers[-1]], Trimmed)


class Trimmed(Module):
    """Stands before the class of a layer: states [1, N, W] -> those of `keep` [M], [1, M, W]."""

    is_trimmed = True  # for a class that is put before this one
    input_layernorm: Module
    self_attn: Module
    post_attention_layernorm: Module
    mlp: Module

    def forward(self, hidden_states: Tensor, *args: Tensor, **options: Any) -> Tensor:
        keep = options.pop("keep", None)
        if keep is None:
            every: Tensor = super().forward(hidden_states, *args, **options)
            return every
        mixed = self.self_attn(hidden_states=self.input_layernorm(hidden_states), **options)[0]
        states: Tensor = hidden_states.index_select(1, keep) + mixed.index_select(1, keep)
        return states + self.mlp(self.post_attention_layernorm(states))
