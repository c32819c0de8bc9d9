"""Says how much a layer keeps of a token until its backward pass: measured, or more than enough.

Measuring takes seconds (`models/saved_activations.py`). A run whose devices have room for more than
it can need is begun without.
"""

from __future__ import annotations

from typing import Literal

import torch

from rolecall.config.schema import Adapter
from rolecall.models.devices import is_gpu
from rolecall.models.memory_needs import BYTES
from rolecall.models.saved_activations import kept_in_last, kept_per_token
from rolecall.models.sizes import Size

Activations = Literal["measured", "at most", "none"]  # none: what batches keep is left out

# Numbers that a layer keeps of a token, as a share of its parameters divided by its width: at most
# 2.4 in 50 families of models (`tests/families.py`), with adapters and without; 1.3 in our loops.
MOST = 4


def kept_by_layer(
    size: Size,
    activations: Activations,
    *,
    dtype: str,
    device: str = "cpu",
    adapter: Adapter | None = None,
) -> float | None:
    """Bytes of one token; None where it cannot be measured.

    `device`: the loops for a CPU keep less than the kernels of a GPU. Raises ValueError for an
    adapter that the model cannot have, where it is measured.
    """
    if activations == "measured":
        fuses = not is_gpu(device)
        return kept_per_token(
            size.config, dtype=getattr(torch, dtype), adapter=adapter, fuses=fuses
        )
    return BYTES["float32"] * MOST * size.layer / size.width


def kept_by_last(
    size: Size, activations: Activations, *, dtype: str, device: str = "cpu"
) -> float | None:
    """Return the bytes that the last layer keeps of one token, where few of its states are read."""
    if activations == "measured":
        return kept_in_last(size.config, dtype=getattr(torch, dtype), fuses=not is_gpu(device))
    return kept_by_layer(size, activations, dtype=dtype, device=device)
