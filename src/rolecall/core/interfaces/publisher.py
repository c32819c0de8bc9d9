"""Declares how engines get new weights."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, runtime_checkable

from rolecall.core.interfaces.engine import Engine
from rolecall.core.interfaces.learner import Rendezvous
from rolecall.core.interfaces.weights import WeightSource


class Publisher(Protocol):
    """Gives an engine the weights of policies; tensors need not pass through the trainer."""

    async def publish(self, policy: str, version: int) -> None:
        """Let the engine sample `policy` with its weights of this version.

        The version of a policy that plays an opponent pool is the step that its weights were kept
        after. The engine need not be able to sample yet: its cache may be asleep.
        """
        ...

    async def check(self, policy: str) -> None:
        """Check that the engine samples a policy's trained weights; raises PublishError if not."""
        ...


@runtime_checkable
class FileEngine(Engine, Protocol):
    """An engine that reads weights from files, in a process of its own."""

    async def load_files(self, policy: str, version: int, folder: Path) -> None:
        """Sample with the weights in a folder from now on; nothing reads it after this call."""
        ...

    async def publish(self, policy: str, version: int, source: WeightSource) -> None:
        await self.load_files(policy, version, await source.files())


@runtime_checkable
class DirectEngine(FileEngine, Protocol):
    """An engine that also takes all weights from a learner's device."""

    async def receive(self, policy: str, version: int, at: Rendezvous, number: int) -> None:
        """Sample with what is sent there from now on; `number`: its first receiver's.

        Raises an error where not all weights come: then others must be loaded.
        """
        ...

    async def publish(self, policy: str, version: int, source: WeightSource) -> None:
        if not await source.hand_over(lambda at: self.receive(policy, version, at, 0)):
            await self.load_files(policy, version, await source.files())
