"""Types what a `torch.autograd.Function` keeps between forward and backward."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor


class FunctionContext(Protocol):
    """The `ctx` of forward and backward, which also holds attributes of the function's own."""

    needs_input_grad: tuple[bool, ...]

    @property
    def saved_tensors(self) -> tuple[Tensor, ...]:
        """The tensors that forward saved."""
        ...

    def save_for_backward(self, *tensors: Tensor | None) -> None:
        """Keep tensors for backward."""
        ...

    def __getattr__(self, name: str) -> Any: ...

    def __setattr__(self, name: str, value: Any) -> None: ...
