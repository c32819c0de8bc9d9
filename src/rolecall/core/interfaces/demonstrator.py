"""Declares how an environment shows what a good agent says, for a warm start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol, runtime_checkable

from rolecall.core.types import Task


@dataclass(frozen=True, slots=True)
class Scene:
    """The moment at which an agent speaks in a demonstration."""

    workflow: str
    role: str
    roles: frozenset[str]  # of the whole team
    tools: frozenset[str]  # that the agent may call
    task: Task
    question: str  # the first message of a user to the agent
    shown: str  # all messages that it is shown, as one text
    transcript: Sequence[tuple[str, str]]  # (agent, text) of the episode so far
    own: Sequence[str]  # what this agent has said so far
    random: Random


@dataclass(frozen=True, slots=True)
class Line:
    """Holds what an agent says in a demonstration."""

    text: str
    imitated: bool = True  # False: a mistake, which is shown to others and learned by nobody


@runtime_checkable
class Demonstrator(Protocol):
    """An environment that writes demonstrations."""

    def demonstrate(self, scene: Scene) -> Line:
        """Return what a good agent says in a scene.

        Raises ValueError for a workflow, a role or a task that it cannot demonstrate.
        """
        ...
