"""Computes values from the hidden states of a language model."""

from __future__ import annotations

from torch import Tensor, nn


class ValueHead(nn.Linear):
    """One linear layer that starts at 0, so that an untrained critic expects nothing."""

    def __init__(self, hidden_size: int, outputs: int = 1) -> None:
        super().__init__(hidden_size, outputs)
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, hidden: Tensor) -> Tensor:
        """[N, hidden_size] -> [N, outputs]."""
        return super().forward(hidden)
