"""Says what an actor of a cluster needs."""

from __future__ import annotations

from typing import Any

from rolecall.cluster.session import RaySession
from rolecall.setup.devices import is_gpu


def device_in(session: RaySession, device: str) -> str:
    """The device of an actor: cuda, which is its own, or cpu. `device`: as the config names it."""
    on_gpu = session.gpus() > 0 if device == "auto" else is_gpu(device)
    return "cuda" if on_gpu else "cpu"


def options_of(gpus: int) -> dict[str, Any]:
    """Of Ray. Without GPUs actors share the cores, as processes do; Ray counts none."""
    if gpus:
        return {"num_gpus": gpus, "num_cpus": 1}
    return {"num_cpus": 0, "scheduling_strategy": "SPREAD"}
