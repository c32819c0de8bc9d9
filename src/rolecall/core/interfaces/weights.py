"""Describes the weights that an engine is given, and the check that it samples with them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

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
    logprobs: Floats  # [T-1] log-probs at temperature 1, of all tokens but the first
    rounded: bool  # learner or engine computes in bfloat16

    def check(self, sampler_logprobs: Floats) -> None:
        """Check an engine's log-probs [T-1]; raises PublishError if they are off."""
        gaps = np.abs(sampler_logprobs - self.logprobs)
        gap = float(gaps.mean() if self.rounded else gaps.max())
        if not gap <= (LARGEST_ROUNDED if self.rounded else LARGEST_GAP):
            raise PublishError(
                f"after publishing {self.policy!r} version {self.version} the sampler's "
                f"log-probs are off by {gap:.3g} nats from the learner's"
            )


class WeightSource:
    """The weights of one version of a policy, in each form that an engine may take."""

    can_send = False  # whether `send` may be asked

    async def tensors(self) -> dict[str, Tensor] | None:
        """Return tensors of this process; None: the engine samples the learner's own."""
        raise NotImplementedError

    async def files(self) -> Path:
        """Return a folder of this machine with files of them, until the next version is written.

        It holds a PEFT adapter for a policy that has one, else all weights as safetensors by the
        names of transformers.
        """
        raise NotImplementedError

    async def files_anywhere(self) -> Written | None:
        """Return files on whichever machine; None: there are newer weights by now."""
        return Written(await self.files())

    async def send(self, at: Rendezvous) -> None:
        """Send them as `Learner.send` does."""
        raise NotImplementedError

    async def hand_over(self, receive: Callable[[Rendezvous], Awaitable[None]]) -> bool:
        """Send them to an engine on this machine, which receives them, if the config says so.

        Returns whether they were sent. Raises what either side raises.
        """
        return False


@dataclass(frozen=True, slots=True)
class WeightFiles(WeightSource):
    """Weights that stand in a folder."""

    folder: Path

    async def files(self) -> Path:
        return self.folder
