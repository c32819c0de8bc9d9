"""Declares how the engine gets new weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from rolecall.interfaces.engine import Engine

if TYPE_CHECKING:
    from torch import Tensor


class PublishError(RuntimeError):
    """The engine does not say what the learner's weights say."""


class Publisher(Protocol):
    """Gives an engine the weights of policies; tensors need not pass through the trainer."""

    async def publish(self, policy: str, version: int) -> None:
        """Let the engine sample `policy` with its weights of this version.

        The version of a policy that plays an opponent pool is the step that its weights were kept
        after. Raises PublishError where the engine then says otherwise.
        """
        ...


class EmbeddedEngine(Engine, Protocol):
    """An engine in the trainer's process, which takes weights as they are."""

    def load(self, policy: str, version: int, weights: dict[str, Tensor] | None) -> None:
        """Sample with these weights from now on; None: with the learner's own tensors."""
        ...


class FileEngine(Engine, Protocol):
    """An engine with weights of its own, which it reads from files."""

    async def load_files(self, policy: str, version: int, folder: Path) -> None:
        """Sample with the weights in a folder from now on, requests under way included.

        For an adapter the folder is PEFT's (adapter_model.safetensors, adapter_config.json); for a
        policy that trains all weights it holds all of them in safetensors files, by the names of
        its checkpoint. No key or value of earlier weights is used again. When this returns the
        files are no longer needed. Raises ValueError where they do not fit.
        """
        ...
