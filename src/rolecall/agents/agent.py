"""Declares who can speak (weights, role) and turns what an agent is told into chat messages."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from rolecall.agents.chat_template import Tokenizer
from rolecall.agents.control_tokens import TAG
from rolecall.core.interfaces.critic import Chooser, Judge
from rolecall.core.interfaces.engine import Engine, Sampling
from rolecall.core.interfaces.environment import Observation
from rolecall.core.interfaces.tool import Tool
from rolecall.core.prompt_truncation import PromptTruncation
from rolecall.core.tags import encodable
from rolecall.core.types import Message, Turn
from rolecall.tools.call_parsing import CLOSE, OPEN, describe_tools
from rolecall.tools.use import ToolUse


@dataclass(frozen=True, slots=True)
class Quote:
    """Words of a turn, or what a workflow made of them, without the name of who said them."""

    turn: Turn
    text: str


Said = str | Turn | Observation | Quote


def quoted_turns(said: Iterable[Said]) -> list[Turn]:
    """Return the turns among what an agent is told, those of quotes too."""
    return [
        entry.turn if isinstance(entry, Quote) else entry
        for entry in said
        if isinstance(entry, Turn | Quote)
    ]


Parser = Callable[[Turn], object | None]  # None: the turn does not have the form it should


@dataclass(slots=True)
class Policy:
    """Named weights and what is needed to speak with them."""

    name: str
    tokenizer: Tokenizer | None  # None: its engine takes messages and says text
    engine: Engine
    template: dict[str, object] = field(default_factory=dict)  # options of the chat template


@dataclass(frozen=True, slots=True)
class CrossPolicy:
    """Holds the earlier weights of an agent's policy that sample some of its turns."""

    policy: Policy
    share: float  # of its turns


@dataclass(slots=True)
class Agent:
    """One member of the team."""

    name: str
    policy: Policy
    role: str  # which of the workflow's roles it plays; several agents may play one
    system: str = ""
    sampling: Sampling = field(default_factory=Sampling)
    truncation: PromptTruncation | None = None
    parser: Parser | None = None
    memory: bool = False  # its earlier exchanges of the episode stand before each new call
    trainable: bool = True
    invalid_penalty: float = 0.0  # taken from the reward of a turn that the parser cannot read
    require_think_tags: bool = False  # a turn is invalid without one thought in its tags
    tools: ToolUse | None = None
    cross_policy: CrossPolicy | None = None
    chooser: Chooser | None = None  # of what it says, among candidates
    judge: Judge | None = None  # of what it says, before it is played

    def messages(
        self, said: tuple[Said, ...], *, earlier: list[Turn], tools: list[Tool] | None = None
    ) -> list[Message]:
        """Texts and other agents' turns become user text, the agent's own turns assistant text.

        solver("2+2?", solver's turn "4", verifier's turn "no") ->
        user "2+2?", assistant "4", user "[verifier]\\nno".
        """
        messages = self.system_messages(tools or [])
        if self.memory and earlier:
            messages = [*earlier[-1].messages, spoken(earlier[-1])]
        for entry in said:
            if not isinstance(entry, Said):
                raise TypeError(
                    f"agent {self.name!r} was told {entry!r}, a {type(entry).__name__}; tell it "
                    "texts, turns or observations"
                    + (" (an await is missing)" if inspect.isawaitable(entry) else "")
                )
            if isinstance(entry, Turn) and entry.agent == self.name:
                messages.append(spoken(entry))
                continue
            # What a server or a program said may be no text.
            text = encodable(entry if isinstance(entry, str) else _shown(entry))
            if messages and messages[-1].role == "user":
                messages[-1] = Message("user", f"{messages[-1].content}\n\n{text}")
            else:
                messages.append(Message("user", text))
        if not messages or messages[-1].role != "user":
            raise ValueError(
                f"agent {self.name!r} was called without anything to answer; "
                "pass it a text, a turn or an observation"
            )
        return messages

    def system_messages(self, tools: list[Tool]) -> list[Message]:
        """Return the system prompt, with its tags and the call tags marked as own."""
        own = tuple(TAG.findall(self.system))
        tools_text = (
            "" if self.tools is None else describe_tools(tools, self.tools.format, without=own)
        )
        if tools_text:
            own = (*own, OPEN, CLOSE)
        system = "\n\n".join(text for text in (self.system, tools_text) if text)
        return [Message("system", system, own=own)] if system else []


def _shown(part: Turn | Observation | Quote) -> str:
    """Return a teammate's words with its name; other texts without."""
    return f"[{part.agent}]\n{part.visible}" if isinstance(part, Turn) else part.text


def spoken(turn: Turn, called: tuple[str, ...] = ()) -> Message:
    """Return a turn as a message; `called`: names of the tools whose results follow it."""
    return Message("assistant", turn.text, turn.tokens, called=called)
