"""Finds the device that a name of a config stands for, and how much memory it has."""

from __future__ import annotations

import os
from pathlib import Path

import torch

CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def device_named(name: str) -> torch.device:
    """Return a device: cpu, cuda, cuda:1 or mps; `auto` takes a GPU if there is one. Raises
    ValueError for one that does not exist.

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


def memory_in(device: torch.device) -> int:
    """Bytes that a device has; of the computer those that this process may use."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    installed = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = CGROUP_LIMIT.read_text().strip() if CGROUP_LIMIT.is_file() else "max"
    return min(installed, int(limit)) if limit.isdigit() else installed


def full_name(device: str, *, auto: str) -> str:
    """Return a device's full name: `auto` stands for a device, and `cuda` for the first GPU."""
    device = auto if device == "auto" else device
    return "cuda:0" if device == "cuda" else device


def is_gpu(device: str) -> bool:
    return device.startswith(("cuda", "mps"))


def _has_mps() -> bool:
    return torch.backends.mps.is_available()
