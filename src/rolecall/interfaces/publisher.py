"""Declares how the engine gets new weights."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from rolecall.interfaces.engine import Engine
from rolecall.types import Floats, Ids

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module


class PublishError(RuntimeError):
    """The engine does not say what the learner's weights say."""


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
class ModelEngine(FileEngine, Protocol):
    """An engine that takes weights from a model of this process, from one GPU to another."""

    async def load_model(self, policy: str, version: int, model: Module) -> None:
        """Sample with its parameters from now on; they may change after this call."""
        ...


@runtime_checkable
class Replicas(FileEngine, Protocol):
    """Several engines that share the requests."""

    async def score_each(self, policy: str, prompt: Ids, tokens: Ids) -> list[Floats]:
        """What each of them says of `tokens` [T] after `prompt` [P], at temperature 1."""
        ...
