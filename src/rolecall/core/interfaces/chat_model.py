"""Declares how a coach, a judge or a simulated user asks an LLM that nobody trains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from rolecall.core.json_types import JsonObject
from rolecall.core.types import Message


@dataclass(frozen=True, slots=True)
class Reply:
    """Holds what a model said, and what that took."""

    text: str  # its thinking stands before it in <think>...</think>
    model: str
    truncated: bool = False  # the length limit ended it
    prompt_tokens: int = 0  # cached ones included
    cached_tokens: int = 0
    completion_tokens: int = 0  # reasoning included
    reasoning_tokens: int = 0
    usd: float = 0.0  # by the policy's `prices`


@runtime_checkable
class ChatModel(Protocol):
    """A frozen policy of the config that answers messages, whatever its engine.

    A reward or an environment whose constructor has an argument of this type names a policy there:
    `{policy: judge}` for `def __init__(self, policy: ChatModel)`.
    """

    model: str
    """The model's name, as its provider or its base has it."""
    identity: str
    """All that its replies depend on beside the messages, for caches of them."""

    is_local: bool
    """Whether an engine of this run samples it: one that may step only while episodes wait."""

    async def reply(
        self,
        messages: Sequence[Message],
        *,
        seed: int,
        schema: JsonObject | None = None,
        max_tokens: int | None = None,
    ) -> Reply:
        """Return the reply to messages, the last of which is a user's.

        `schema`: JSON schema that the text must fit; engines that cannot be held to one ignore it,
        so say it in the messages too. `max_tokens`: instead of the policy's own. Requests that fail
        are made again. Raises ContextFullError where the messages leave no room, RunEndingError
        where no request can succeed, and InfrastructureError for every other missing reply.
        """
        ...
