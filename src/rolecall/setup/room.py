"""Refuses a run that does not fit into the memory of its devices, before weights are loaded."""

from __future__ import annotations

import torch

from rolecall.config.errors import ConfigError
from rolecall.config.schema import Config
from rolecall.models.devices import memory_in
from rolecall.setup.memory import memory_of, peaks

RESERVED = int(1e9)  # of each device for libraries: CUDA's context, or Python's modules
LOOKED_INTO = 0.1  # share of the room above which activations are measured, which takes seconds


def rooms() -> dict[str, int]:
    """Bytes of each device here; the GPUs, or the computer where there is none."""
    gpus = {f"cuda:{n}": memory_in(torch.device("cuda", n)) for n in range(_num_gpus())}
    return gpus or {"cpu": memory_in(torch.device("cpu"))}


def _num_gpus() -> int:
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def check_room(config: Config, machine: dict[str, int] | None = None) -> None:
    """Raises ConfigError where a device would hold more than it has.

    `machine`: bytes of each device; by default those of this computer.
    """
    machine = machine or rooms() | {"cpu": memory_in(torch.device("cpu"))}
    auto = next(iter(machine))
    most = peaks(memory_of(config, auto=auto, activations=False))
    if not any(p.num_bytes > LOOKED_INTO * machine.get(p.device, p.num_bytes) for p in most):
        return
    for peak in peaks(memory_of(config, auto=auto)):
        room = machine.get(peak.device)
        if peak.is_device and room is not None and peak.num_bytes + RESERVED > room:
            raise ConfigError(
                f"policies: {peak.device} would hold {peak.num_bytes / 1e9:.1f} GB "
                f"({peak.phase}) and has {room / 1e9:.1f}; `rolecall plan` says what would fit"
            )
