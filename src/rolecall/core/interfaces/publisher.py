"""Declares how the engine gets new weights."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from rolecall.core.interfaces.engine import Engine
from rolecall.core.interfaces.learner import Rendezvous, Written
from rolecall.core.types import Floats, Ids

if TYPE_CHECKING:
    from torch import Tensor


LARGEST_GAP = 1e-3  # nats, float32; a sampler with other weights is much further off
LARGEST_ROUNDED = 0.2  # nats in the mean, where one of them computes in bfloat16


class PublishError(RuntimeError):
    """The engine does not say what the learner's weights say."""


@dataclass(frozen=True, slots=True, eq=False)
class Probe:
    """Holds a learner's log-probs of some tokens with the weights that it has published."""

    policy: str
    version: int
    tokens: Ids  # [T]
    wanted: Floats  # [T-1] log-probs at temperature 1, of all tokens but the first
    rounded: bool  # learner or engine computes in bfloat16

    def check(self, said: Floats) -> None:
        """Raises PublishError where an engine says something else, `said` [T-1]."""
        gaps = np.abs(said - self.wanted)
        gap = float(gaps.mean() if self.rounded else gaps.max())
        if not gap <= (LARGEST_ROUNDED if self.rounded else LARGEST_GAP):
            raise PublishError(
                f"after publishing {self.policy!r} version {self.version} the sampler's "
                f"log-probs are off by {gap:.3g} nats from the learner's"
            )


class Publisher(Protocol):
    """Gives an engine the weights of policies; tensors need not pass through the trainer."""

    async def publish(self, policy: str, version: int) -> None:
        """Let the engine sample `policy` with its weights of this version.

        The version of a policy that plays an opponent pool is the step that its weights were kept
        after. The engine need not be able to sample yet: its cache may be asleep.
        """
        ...

    async def check(self, policy: str) -> None:
        """Raises PublishError where the engine does not sample a trained policy's weights."""
        ...


@dataclass(frozen=True, slots=True)
class WeightSource:
    """Gives the weights of one version of a policy."""

    write: Callable[[], Awaitable[Written | None]]
    """Files of them; those of the last call may be gone when it begins. None: there are newer ones
    by now."""
    send: Callable[[Rendezvous], Awaitable[None]] | None = None
    """As `Learner.send`; None: they are in files."""


class EmbeddedEngine(Engine, Protocol):
    """An engine in the trainer's process, which takes weights as they are."""

    def load(self, policy: str, version: int, weights: dict[str, Tensor] | None) -> None:
        """Sample with these weights from now on; None: with the learner's own tensors."""
        ...


@runtime_checkable
class FileEngine(Engine, Protocol):
    """An engine that reads weights from files, in a process of its own."""

    async def load_files(self, policy: str, version: int, folder: Path) -> None:
        """Sample with the weights in a folder from now on.

        It holds a PEFT adapter for a policy that has one, else all weights as safetensors by the
        names of transformers. Nothing reads it after this call.
        """
        ...


@runtime_checkable
class DirectEngine(FileEngine, Protocol):
    """An engine that also takes all weights from a learner's device."""

    async def receive(self, policy: str, version: int, at: Rendezvous, number: int) -> None:
        """Sample with what is sent there from now on; `number`: its first receiver's.

        Raises an error where not all weights come: then others must be loaded.
        """
        ...


@runtime_checkable
class Replicas(FileEngine, Protocol):
    """Several engines that share the requests.

    What they sample of a policy with weights that are new they give away once these are proven or
    trusted.
    """

    async def take(self, policy: str, version: int, source: WeightSource) -> None:
        """Load weights as `load_files` does, from `source`, on whichever machine."""
        ...

    async def prove(self, probe: Probe) -> None:
        """Let each that says what the learner says give its answers, and start the others again.

        Raises PublishError where all say something else: then it is not one engine's fault.
        """
        ...

    async def trust(self, policy: str) -> None:
        """Let all give their answers: no learner has these weights, and can say what is right."""
        ...
