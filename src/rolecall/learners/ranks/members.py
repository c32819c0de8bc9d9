"""Holds one rank's part of each policy's learner: what the trainer calls.

A call comes to all ranks at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from rolecall.core.interfaces.learner import Annotation, Rendezvous
from rolecall.core.types import Batch, Floats
from rolecall.learners.ranks.building import built_member
from rolecall.learners.ranks.member import Member
from rolecall.learners.ranks.spec import Built, LearnerSpec
from rolecall.learners.ranks.wire import Shipped
from rolecall.runtime.scratch import shared_folder


class Members:
    """The learners of this rank, by policy: what the trainer calls."""

    def __init__(self, device: str, *, scratch: str = "") -> None:
        self.device, self.scratch = torch.device(device), scratch
        self.learners: dict[str, Member] = {}

    def build(self, name: str, spec: LearnerSpec) -> Built:
        self.learners[name] = built_member(spec, self.device)
        return self.learners[name].build()

    def drop(self, name: str) -> None:
        del self.learners[name]

    def step(
        self,
        name: str,
        algorithm: Shipped,
        apart: bool,
        by_agent: list[tuple[str, list[Batch]]],
    ) -> dict[str, Any]:
        return self.learners[name].step(by_agent, algorithm.unpack(), apart=apart)

    def find_broken(self, name: str, algorithm: Shipped, batches: list[Batch]) -> str:
        return self.learners[name].find_broken(batches, algorithm.unpack())

    def annotate(
        self, name: str, what: set[Annotation], batches: list[Batch]
    ) -> dict[str, dict[Annotation, Floats]]:
        return self.learners[name].annotate_own(batches, what)

    def write(self, name: str, folder: Path) -> None:
        self._everywhere(lambda: self.learners[name].write(folder))

    def write_here(self, name: str) -> Path:
        """Rank 0 writes into a folder of its machine, which is there until the next call."""
        folder = Path()
        if distributed.get_rank() == 0:
            folder = shared_folder(self.scratch, name, room=self.learners[name].num_bytes)
        self.write(name, folder)
        return folder

    def send(self, name: str, at: Rendezvous) -> str:
        return self.learners[name].hand_over(at)

    def save(self, name: str, folder: Path, version: int, num_skipped: int) -> None:
        learner = self.learners[name]
        learner.version, learner.num_skipped = version, num_skipped
        self._everywhere(lambda: learner.save(folder))

    def load(self, name: str, folder: Path) -> tuple[int, int, int]:
        """Load a learner; returns its version, the steps skipped in a row, and the steps made."""
        learner = self.learners[name]
        learner.load(folder)
        return learner.version, learner.num_skipped, learner.num_steps

    def refresh_reference(self, name: str) -> None:
        asyncio.run(self.learners[name].refresh_reference())

    def take_over(self, name: str, folder: Path, moments: bool) -> None:
        self.learners[name].take_over(folder, moments=moments)

    def take_over_head(self, name: str, folder: Path, moments: bool) -> bool:
        return self.learners[name].take_over_head(folder, moments=moments)

    def offload(self, name: str) -> None:
        asyncio.run(self.learners[name].offload())

    def load_back(self, name: str) -> None:
        asyncio.run(self.learners[name].load_back())

    def _everywhere(self, write: Callable[[], None]) -> None:
        """Write on rank 0, so that the files are there when any rank answers."""
        write()
        distributed.barrier()
