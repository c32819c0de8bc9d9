"""Computes values from the hidden states of a language model."""

from __future__ import annotations

from torch import nn


class ValueHead(nn.Linear):
    """One linear layer [N, hidden_size] -> [N, outputs] that starts at 0.

    So an untrained critic expects nothing.
    """

    def __init__(self, hidden_size: int, outputs: int = 1) -> None:
        super().__init__(hidden_size, outputs)
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)
