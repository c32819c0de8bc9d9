"""The embedded engine with weights of its own, in a process that holds nothing else."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from torch import Tensor

from rolecall.core.interfaces.learner import Rendezvous
from rolecall.core.interfaces.publisher import DirectEngine
from rolecall.engines.local.engine import LocalEngine
from rolecall.models.weight_transfer import Receiver


class HostedEngine(LocalEngine, DirectEngine):
    """Gets published weights in files or from a learner's device."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._receivers: dict[str, Receiver] = {}  # by policy

    async def load_files(self, policy: str, version: int, folder: Path) -> None:
        """Rows in flight go on with the new weights."""
        self._schedulers[policy].policies[policy].load(folder)
        self.load(policy, version, None)

    async def receive(self, policy: str, version: int, at: Rendezvous, number: int) -> None:
        """Receive all weights before any of them is sampled with."""
        self.load(policy, version, await asyncio.to_thread(self._received, policy, at, number))

    def _received(self, policy: str, at: Rendezvous, number: int) -> dict[str, Tensor]:
        device = self._schedulers[policy].policies[policy].device
        receiver = self._receivers.setdefault(policy, Receiver(device))
        return {name: weight.clone() for name, weight in receiver.weights(at, number)}
