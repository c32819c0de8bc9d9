"""Makes a model's head compute float32 logits, whatever its weights are stored in.

In bfloat16 logits of 20 are steps of .125 apart, so log-probs would be off by as much. The products
of two bfloat16 numbers are exact in float32, where they are also summed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import Linear
from torch.nn.functional import linear


def make_exact(model: Any) -> None:
    """Change the head in place; one in float32, or of another kind, stays as it is."""
    head = model.get_output_embeddings()
    if type(head) is Linear and head.weight.dtype != torch.float32:
        head.__class__ = ExactHead


class ExactHead(Linear):
    """States [..., W] -> float32 logits [..., V]."""

    def forward(self, input: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.float()
        return linear(input.float(), self.weight.float(), bias)
