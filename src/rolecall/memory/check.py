"""Refuses a run that does not fit into the memory of its devices, before weights are loaded."""

from __future__ import annotations

import torch

from rolecall.config.schema import Config
from rolecall.core.errors import ConfigError
from rolecall.memory.estimate import Peak, estimate_memory, peaks
from rolecall.models.batch_memory import Activations
from rolecall.models.devices import is_gpu, memory_in

RESERVED_GPU = int(1e9)  # for libraries: CUDA's context and its kernels
RESERVED_CPU = int(0.7e9)  # the same: Python's modules and compiled loops; 0.6 measured


def reserved_bytes(device: str) -> int:
    """Return the bytes of a device that are left to libraries."""
    return RESERVED_GPU if is_gpu(device) else RESERVED_CPU


def rooms() -> dict[str, int]:
    """Bytes of each device here; the GPUs, or the computer where there is none."""
    gpus = {f"cuda:{n}": memory_in(torch.device("cuda", n)) for n in range(_num_gpus())}
    return gpus or {"cpu": memory_in(torch.device("cpu"))}


def _num_gpus() -> int:
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def check_room(config: Config, machine: dict[str, int] | None = None) -> None:
    """Check that devices have room for what they hold; raises ConfigError otherwise.

    `machine`: bytes of each device; by default those of this computer.
    """
    machine = machine or rooms() | {"cpu": memory_in(torch.device("cpu"))}
    auto = next(iter(machine))
    if not _too_large(config, machine, auto, "at most"):
        return
    for peak in _too_large(config, machine, auto, "measured"):
        reserved = reserved_bytes(peak.device)
        held = (peak.num_bytes + reserved) / 1e9
        raise ConfigError(
            f"policies: {peak.device} would hold {held:.1f} GB ({peak.phase}, with "
            f"{reserved / 1e9:g} GB for libraries) and has {machine[peak.device] / 1e9:.1f}; "
            "`rolecall plan` says what would fit"
        )


def _too_large(
    config: Config, machine: dict[str, int], auto: str, activations: Activations
) -> list[Peak]:
    return [
        peak
        for peak in peaks(estimate_memory(config, auto=auto, activations=activations))
        if peak.is_device and peak.device in machine
        if peak.num_bytes + reserved_bytes(peak.device) > machine[peak.device]
    ]
