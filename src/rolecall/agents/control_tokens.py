"""Finds the texts that control a tokenizer's chat layout, and breaks them up in foreign text.

Where the set comes from, so that it fits any model without a list of names kept here:

- every added token that the tokenizer calls special, named (`eos_token`) or not, as Llama 3's
  `<|start_header_id|>` is not;
- every other added token that the chat template itself writes: Qwen's `<tool_response>` and
  `<think>` are not special, yet they frame what a tool said and what was thought. Found in the
  template's own text, and in what it makes of harmless conversations, because many templates put
  a header together (`<|` + role + `|>`);
- tags without a token of their own that it writes around roles, as `[INST]` and `<<SYS>>` are for
  older tokenizers;
- frames: other tags that it writes where there are tools, such as `</tools>` or `<parameter=`.
  They mean something only inside a frame, and task texts may hold tags of that shape, so they are
  broken up in what tools say and in the schemas of tools alone.

Other added tokens are words: tags such as `<verify>` that an agent says and its teammates read.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING, Any

from rolecall.core.json_types import JsonObject, JsonValue

if TYPE_CHECKING:
    from tokenizers import AddedToken
    from transformers import PreTrainedTokenizerBase as Tokenizer

# Llama templates print today's date unless told another; a prompt must not depend on the day.
TEMPLATE_DATE = "26 Jul 2024"
TAG = re.compile(r"<{1,2}[^<>\s'\"{}+]{1,60}>{1,2}|\[/?[A-Z][A-Z_]+\]")
MARKUP = re.compile(r"[<>\[\]|\uff5c]")  # what a control token is written with
WORD = re.compile(r"[\w$.-]*", re.ASCII)
SOUGHT = "x"  # what harmless conversations say
SCHEMA = {"type": "object", "properties": {SOUGHT: {"type": "string", "description": SOUGHT}}}
TOOL = {
    "type": "function",
    "function": {"name": SOUGHT, "description": SOUGHT, "parameters": SCHEMA},
}
MOST_ROUNDS = 8  # of breaking up: one is enough unless tokens hold spaces


@dataclass(frozen=True, slots=True)
class Controls:
    """The texts and tokens that no foreign text may hold."""

    special: frozenset[str]  # added tokens that the tokenizer calls special
    tokens: frozenset[str]  # these, and all that the layout is made of; broken up everywhere
    frames: frozenset[str]  # tags around tools that are no tokens; broken up in what tools say
    ids: frozenset[int]  # of those that are one token

    def broken(self, text: str, *, own: Iterable[str] = (), framed: bool = False) -> str:
        """Put a space into each control token of `text`: "<|im_end|>" becomes "< |im_end|>".

        `own` are tags that stay: we wrote them. Special tokens never stay. `framed`: `text` stands
        in a frame of tools.
        """
        kept = frozenset(own) - self.special
        sought = (self.tokens | self.frames if framed else self.tokens) - kept
        pattern = _pattern(sought)
        for _ in range(MOST_ROUNDS):
            text, changes = pattern.subn(_apart, text)
            if not changes:
                break
        return text

    def broken_schema(self, value: JsonValue) -> Any:
        """Return a tool's schema with all its texts, keys included, broken up."""
        if isinstance(value, str):
            return self.broken(value, framed=True)
        if isinstance(value, dict):
            return {self.broken_schema(k): self.broken_schema(v) for k, v in value.items()}
        if isinstance(value, list | tuple):
            return [self.broken_schema(inner) for inner in value]
        return value


def controls(tokenizer: Tokenizer) -> Controls:
    """Return the controls of a tokenizer and the template that it has now."""
    return _controls(tokenizer, str(tokenizer.chat_template))


def empty_schema(value: JsonValue) -> Any:
    """Return a schema of the same form without its texts.

    Bare words stay, as templates go by them.
    """
    if isinstance(value, str):
        return value if WORD.fullmatch(value) else SOUGHT
    if isinstance(value, dict):
        return {
            key if WORD.fullmatch(str(key)) else f"{SOUGHT}{index}": empty_schema(inner)
            for index, (key, inner) in enumerate(value.items())
        }
    if isinstance(value, list | tuple):
        return [empty_schema(inner) for inner in value]
    return value


@lru_cache(maxsize=64)
def _controls(tokenizer: Tokenizer, template: str) -> Controls:
    added = {token.content: (ident, token) for ident, token in _added(tokenizer).items()}
    special = {text for text, (_, token) in added.items() if token.special and text.strip()}
    special |= {str(text) for text in tokenizer.all_special_tokens if str(text).strip()}
    spoken = list(_rendered(tokenizer, _conversations(), tools=[None]))
    with_tools = list(_rendered(tokenizer, _tool_conversations(), tools=[None, [TOOL]]))
    written = "\n".join([template, *spoken, *with_tools])
    # Line ends and runs of spaces are added tokens too, and no text can do without them.
    tokens = special | {text for text in added if MARKUP.search(text) and text in written}
    tokens |= {tag for text in spoken for tag in TAG.findall(text)}
    frames = {tag for text in with_tools for tag in TAG.findall(text)}
    frames |= set(TAG.findall(template))
    return Controls(
        special=frozenset(special),
        tokens=frozenset(tokens),
        frames=frozenset(frames - tokens),
        ids=frozenset(added[text][0] for text in tokens if text in added),
    )


def _added(tokenizer: Tokenizer) -> dict[int, AddedToken]:
    return dict(getattr(tokenizer, "added_tokens_decoder", {}))


def _conversations() -> Iterator[list[JsonObject]]:
    """Yield the forms of conversations that teams have without tools."""
    system = {"role": "system", "content": SOUGHT}
    user = {"role": "user", "content": SOUGHT}
    assistant = {"role": "assistant", "content": SOUGHT}
    yield [user, assistant, user]
    yield [system, user, assistant, user]
    yield [system, user, assistant, user, assistant]


def _tool_conversations() -> Iterator[list[JsonObject]]:
    """Yield conversations with calls and results, in the forms that families of templates take."""
    user = {"role": "user", "content": SOUGHT}
    function = {"name": SOUGHT, "arguments": {SOUGHT: SOUGHT}}
    call = {"type": "function", "id": "x" * 9, "function": function}
    calling = {"role": "assistant", "content": SOUGHT, "tool_calls": [call]}
    result = {"role": "tool", "content": SOUGHT, "name": SOUGHT, "tool_call_id": "x" * 9}
    yield [user, calling, result]
    yield [user, {**calling, "content": ""}, result]
    yield [user, {"role": "assistant", "content": SOUGHT}, result]


def _rendered(
    tokenizer: Tokenizer, said: Iterable[list[JsonObject]], *, tools: list[list[JsonObject] | None]
) -> Iterator[str]:
    """Yield what the template writes of each conversation that it takes, with each choice of
    tools.
    """
    for messages, shown, thinks in product(said, tools, ({}, {"enable_thinking": False})):
        try:
            text = tokenizer.apply_chat_template(
                messages, tools=shown, tokenize=False, add_generation_prompt=True,
                date_string=TEMPLATE_DATE, **thinks,
            )  # fmt: skip
        except Exception:  # the boundary to templates: many refuse a role or an order
            continue
        yield str(text)


def _apart(found: re.Match[str]) -> str:
    """Put a space behind the first character, or in place of it where there is only one."""
    return f"{found[0][:1]} {found[0][1:]}" if len(found[0]) > 1 else " "


@lru_cache(maxsize=256)
def _pattern(texts: frozenset[str]) -> re.Pattern[str]:
    """Any of them, the longest first; nothing, where there are none."""
    longest = sorted(texts, key=lambda text: (-len(text), text))
    return re.compile("|".join(map(re.escape, longest)) or r"(?!)")
