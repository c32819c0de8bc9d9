"""Finds the device that a name of a config stands for."""

from __future__ import annotations

import torch


def device_named(name: str) -> torch.device:
    """cpu, cuda, cuda:1, mps; `auto` takes a GPU if there is one. ValueError for one that is not.

    `meta` and other devices of PyTorch that hold or compute nothing are no answer.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"there is no device {name!r}; write cpu, cuda, cuda:1 or mps") from None
    number = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(_has_mps())}
    if (device.index or 0) >= number.get(device.type, 0):
        has = ", ".join(kind for kind, count in number.items() if count)
        raise ValueError(f"this machine has no device {name!r} (it has: {has}); write auto or cpu")
    return device


def _has_mps() -> bool:
    return torch.backends.mps.is_available()
