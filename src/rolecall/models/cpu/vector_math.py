"""Makes the first calls of PyTorch's elementwise functions as accurate as all others.

PyTorch computes the functions below with MKL, which chooses the code of each when it is first
called. Where threads make that call together, one of them can compute its share with code for low
accuracy, without a word: errors of 1e-4 instead of 1e-8, in that call only. That is issue 188792 of
PyTorch, of MKL 2024.2, which its wheels contain. A run's tables of cosines were such a first call.
"""

from __future__ import annotations

import torch

FUNCTIONS = (
    "abs", "acos", "asin", "atan", "cos", "cosh", "erf", "erfc", "erfinv", "exp", "exp2", "expm1",
    "lgamma", "log", "log10", "log1p", "log2", "rsqrt", "sigmoid", "sin", "sinh", "sqrt", "tan",
    "tanh", "trunc",
)  # fmt: skip


def choose_vector_math() -> None:
    """Let MKL choose the code of each function, in this thread alone."""
    for dtype in (torch.float32, torch.float64):
        number = torch.full((1,), 0.5, dtype=dtype)
        for name in FUNCTIONS:
            getattr(torch, name)(number)
