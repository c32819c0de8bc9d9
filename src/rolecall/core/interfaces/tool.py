"""Declares what a tool is: a name, what it takes, and an async call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Literal

from rolecall.core.json_types import JsonObject

Call = Callable[..., Awaitable[str]]
Format = Literal["native", "tags", "code"]  # how an agent writes a call
_writing: ContextVar[list[str] | None] = ContextVar("rolecall_files_written", default=None)


class ToolError(ValueError):
    """The agent asked for what cannot be done; the message is what it is told."""


def wrote(names: Iterable[str]) -> None:
    """Report files that are being written, to be noted on the turn whose call wrote them."""
    noted = _writing.get()
    if noted is not None:
        noted += names


@contextmanager
def noting_files() -> Iterator[list[str]]:
    """Yield the files that the calls made meanwhile write; those of other turns do not mix in."""
    noted: list[str] = []
    token = _writing.set(noted)
    try:
        yield noted
    finally:
        _writing.reset(token)


@dataclass(frozen=True, slots=True)
class Tool:
    """Something an agent can call by name. What it raises is told to the agent and counted.

    An InfrastructureError is not: it ends the episode.
    """

    name: str
    description: str
    parameters: JsonObject  # JSON schema of the arguments: an object
    call: Call  # with the arguments by name
    ends_itself: bool = False  # within limits of its own, so that waiting for it is nobody's fault

    @property
    def schema(self) -> JsonObject:
        """Return the schema as chat templates and OpenAI's API take it."""
        described = {"description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": {"name": self.name, **described}}

    @property
    def signature(self) -> str:
        """Return the tool's line in a prompt: arguments and description.

        `add(a: integer, b: integer): The sum of two whole numbers.`
        """
        required = self.parameters.get("required", [])
        listed = ", ".join(
            f"{name}{'' if name in required else '?'}: {_kind(field)}"
            for name, field in self.parameters.get("properties", {}).items()
        )
        return f"{self.name}({listed}): {self.description}"


def _kind(field: object) -> str:
    """Return a short name for a JSON schema, which a program may have sent."""
    if not isinstance(field, dict):
        return "any"
    values, options = field.get("enum"), field.get("anyOf")
    if isinstance(values, list):
        return " or ".join(repr(value) for value in values)
    if isinstance(options, list) and options:
        return " or ".join(map(_kind, options))
    return str(field.get("type", "any"))
