"""Renders messages to prompt tokens with the model's own chat template.

An agent's own earlier turn enters the next prompt as the very tokens that were sampled, behind the
very prompt that it answered: the template is rendered with a marker in the turn's place, and what
it writes behind the marker follows the tokens. Whatever else enters the prompt (tasks, other
agents, tools, their schemas) is foreign text, and holds no control token of the layout when it gets
there.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from rolecall.agents.control_tokens import SOUGHT, Controls, controls, empty_schema
from rolecall.agents.tool_form import CALL_ID, call_message, tool_form
from rolecall.agents.turn_form import render, turn_form
from rolecall.core.json_types import JsonObject
from rolecall.core.types import Ids, Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase as Tokenizer
else:
    Tokenizer = Any  # a config is checked before transformers is imported, which takes seconds

KEPT = 256  # texts and prompts whose tokens are remembered


def prompt_ids(
    tokenizer: Tokenizer,
    messages: list[Message],
    *,
    options: dict[str, object],
    tools: list[JsonObject] | None = None,
) -> Ids:
    """Return the tokens [P] up to where the assistant starts to speak. `tools`: schemas for the
    template.

    user "2+2", assistant [15, 2] (2 = end token), user "sure?" becomes
    tokens("<user>2+2</user><assistant>") + [15, 2] + tokens("<user>sure?</user><assistant>").
    Raises ValueError if the template drops or rewrites an assistant message, or if the prompt
    holds more control tokens than it has without its texts.
    """
    messages = fold_system(tokenizer, messages)
    fields = [
        (m.role, m.content, m.name, m.own, m.called, m.tail, _listed(m.tokens)) for m in messages
    ]
    return _prompt_ids(tokenizer, _asked(tokenizer, fields, messages, options, tools or [])).copy()


def fold_system(tokenizer: Tokenizer, messages: list[Message]) -> list[Message]:
    """Put the system text before the first user message, for a template without that role.

    Gemma's and Mistral's makers advise to do so. Templates that have the role get the messages as
    they are.
    """
    first, *rest = messages
    if first.role != "system" or turn_form(tokenizer).has_system_role:
        return messages
    if not rest or rest[0].role != "user":
        return [Message("user", first.content, own=first.own), *rest]
    question = controls(tokenizer).broken(rest[0].content, own=rest[0].own)  # its tags are not ours
    return [Message("user", f"{first.content}\n\n{question}", own=first.own), *rest[1:]]


@dataclass(frozen=True, slots=True)
class _Asked:
    """The inputs of a prompt, which is the same if its key is."""

    key: tuple[object, ...]
    messages: list[Message] = field(compare=False)
    options: dict[str, object] = field(compare=False)
    tools: list[JsonObject] = field(compare=False)


def _asked(
    tokenizer: Tokenizer,
    said: Sequence[tuple[object, ...]],
    messages: list[Message],
    options: dict[str, object],
    tools: list[JsonObject],
) -> _Asked:
    """Return the arguments of the template.

    `said`: a function that picks what it takes of each message.
    """
    template, chosen = str(tokenizer.chat_template), repr(sorted(options.items()))
    return _Asked((template, *said, chosen, repr(tools)), messages, options, tools)


def _listed(tokens: Ids | None) -> tuple[int, ...] | None:
    return None if tokens is None else tuple(tokens.tolist())


@lru_cache(maxsize=KEPT)
def _prompt_ids(tokenizer: Tokenizer, asked: _Asked) -> Ids:
    """Return the prompt's tokens from a cache, because members of a group begin with the same
    prompt.
    """
    messages, options = asked.messages, asked.options
    forbidden = controls(tokenizer)
    shown, tails = show(tokenizer, messages), [forbidden.broken(m.tail) for m in messages]
    schemas = forbidden.broken_schema(asked.tools)
    pieces = _pieces(tokenizer, messages, shown, tails, options=options, tools=schemas)
    _check(tokenizer, messages, pieces, options=options, tools=schemas)
    return np.concatenate(pieces).astype(np.int32)


def _pieces(
    tokenizer: Tokenizer,
    messages: list[Message],
    shown: list[dict[str, str]],
    tails: list[str],
    *,
    options: dict[str, object],
    tools: list[JsonObject],
) -> list[Ids]:
    """Return the tokens of what is `shown`, each sampled turn in its position.

    text, turn, text ...; a turn with a tail is without its end, which stands behind the tail.
    """
    places = [index for index, message in enumerate(messages) if message.tokens is not None]
    marks = _marks(len(places), absent_from=json.dumps([shown, tools], default=str))
    marked: list[JsonObject] = list(shown)
    for index, mark in zip(places, marks, strict=True):
        marked[index] = _marked(tokenizer, shown[index], messages[index], mark)
    pieces: list[Ids] = []
    # Each text is cut from the prompt that its turn answered, so that this prompt begins with that
    # one and what was sampled, however the template writes earlier turns.
    ends = [*places, len(messages)]
    for number, index in enumerate(ends):
        # A turn without anything before it answered no prompt of this conversation.
        until = index or ends[1]
        text = render(tokenizer, marked[:until], asks=True, options=options, tools=tools)
        if index == 0 and places:
            pieces.append(encode(tokenizer, text.partition(marks[0])[0]))
        elif number == 0:
            pieces.append(encode(tokenizer, text))
        else:
            before, tokens = places[number - 1], pieces[-1]
            text = _text_after(tokenizer, text, marks[number - 1], messages[before])
            pieces.append(_encode_after(tokenizer, tails[before] + text, tokens))
        if index < len(messages):
            sampled = messages[index].tokens
            assert sampled is not None, "places are those of sampled turns"
            pieces.append(_without_end(tokenizer, sampled) if tails[index] else sampled)
    return pieces


def _marked(tokenizer: Tokenizer, entry: dict[str, str], message: Message, mark: str) -> JsonObject:
    """Return a sampled turn for the template with a mark as its words, or in its first call."""
    if not message.called or not tool_form(tokenizer).names_calls:
        return entry | {"content": mark}
    forbidden = controls(tokenizer)
    calls = [
        call_message(
            forbidden.broken(name, framed=True), arguments={SOUGHT: "" if n else mark}, number=n
        )
        for n, name in enumerate(message.called)
    ]
    return entry | {"content": "", "tool_calls": calls}


def _text_after(tokenizer: Tokenizer, text: str, mark: str, message: Message) -> str:
    """Return what a template writes behind a turn. Raises ValueError where that is not clear."""
    if text.count(mark) > 1:
        raise ValueError(
            "the chat template writes an earlier assistant message twice; use a base whose "
            "template writes each message once"
        )
    _, separator, after = text.partition(mark)
    if message.called and tool_form(tokenizer).names_calls:
        after = turn_form(tokenizer).skip_to_control(after)  # the rest of the call is in the turn
    if not separator:
        raise ValueError(
            "the chat template leaves out an earlier assistant message; use a base whose "
            "template writes each message once"
        )
    return after


def _encode_after(tokenizer: Tokenizer, text: str, tokens: Ids) -> Ids:
    """Return the tokens of a template's text behind a sampled turn, whose end stands once.

    It is tokenised behind a control token: SentencePiece puts a space before a text of its own.
    """
    last = tokenizer.decode(tokens[-1:]) if len(tokens) else ""
    return encode_in_context(tokenizer, turn_form(tokenizer).strip_end(text, last=last))


def _without_end(tokenizer: Tokenizer, tokens: Ids) -> Ids:
    is_ended = len(tokens) > 0 and tokenizer.decode(tokens[-1:]) in turn_form(tokenizer).tokens
    return tokens[:-1] if is_ended else tokens


def encode_in_context(tokenizer: Tokenizer, text: str) -> Ids:
    """Return the tokens [N] that a text has behind a control token."""
    anchor = turn_form(tokenizer).end
    if not anchor or not text:
        return encode(tokenizer, text)
    before, both = encode(tokenizer, anchor), encode(tokenizer, anchor + text)
    if len(both) <= len(before) or both[: len(before)].tolist() != before.tolist():
        return encode(tokenizer, text)
    return both[len(before) :]


def _marks(number: int, *, absent_from: str) -> list[str]:
    """Texts that nobody could have written: random, and in nothing that is shown."""
    while True:
        base = f"turn{secrets.token_hex(16)}n"
        if base not in absent_from:
            return [f"{base}{ordinal}e" for ordinal in range(number)]


def show(tokenizer: Tokenizer, messages: list[Message]) -> list[dict[str, str]]:
    """Return messages for the template, in which foreign text forges nothing."""
    forbidden = controls(tokenizer)
    return [_shown(message, forbidden) for message in messages]


def _shown(message: Message, known: Controls) -> dict[str, str]:
    """Return a message for the template, with what foreign text forges broken up."""
    framed = message.role == "tool"
    content = known.broken(message.content, own=message.own, framed=framed)
    name = known.broken(message.name, framed=True)
    role = known.broken(message.role, framed=True)
    shown = {"role": role, "content": content} | ({"name": name} if name else {})
    return shown | ({"tool_call_id": CALL_ID} if framed else {})


def _check(
    tokenizer: Tokenizer,
    messages: list[Message],
    pieces: list[Ids],
    *,
    options: dict[str, object],
    tools: list[JsonObject],
) -> None:
    """Check that no text adds a control token to those of the layout; raises ValueError otherwise.

    Tokenizers that change a text before they look for tokens in it could make one from a text that
    holds none, so this counts tokens and not texts.
    """
    forbidden = controls(tokenizer)
    fields = [
        (
            m.role,
            *own_tags(m),
            bool(m.name),
            bool(m.tail),
            None if m.tokens is None else _listed(m.tokens[-1:]),
        )
        for m in messages
    ]
    prompt = _asked(tokenizer, fields, messages, options, tools)
    if _number(pieces, forbidden.ids) <= _written(tokenizer, prompt):
        return
    texts = [m.tail for m in messages]
    texts += [text for m in messages if m.tokens is None for text in (m.content, m.name)]
    for text in [*texts, json.dumps(tools, ensure_ascii=False, default=str)]:
        shown = forbidden.broken(text, framed=True)
        if _number([encode(tokenizer, shown)], forbidden.ids):
            raise ValueError(f"a prompt would hold a forged control token, from {text[:200]!r}")
    raise ValueError(
        f"a prompt would hold a forged control token, from one of {[t[:200] for t in texts]}"
    )


@lru_cache(maxsize=KEPT)
def _written(tokenizer: Tokenizer, asked: _Asked) -> int:
    """Return how many control tokens the template itself writes around what was said."""
    bare = [
        {"role": entry.role, "content": SOUGHT + "".join(own_tags(entry))}
        | ({"name": SOUGHT} if entry.name else {})
        | ({"tool_call_id": CALL_ID} if entry.role == "tool" else {})
        for entry in asked.messages
    ]
    schemas, tails = empty_schema(asked.tools), [SOUGHT if m.tail else "" for m in asked.messages]
    empty = _pieces(tokenizer, asked.messages, bare, tails, options=asked.options, tools=schemas)
    return _number(empty, controls(tokenizer).ids)


def own_tags(message: Message) -> list[str]:
    """Return the tags of the content that we wrote, in their order."""
    if not message.own:
        return []
    longest = sorted(message.own, key=len, reverse=True)
    return re.findall("|".join(map(re.escape, longest)), message.content)


def _number(pieces: list[Ids], ids: frozenset[int]) -> int:
    """Return how many of `ids` there are between sampled turns, which stand at the odd places."""
    return sum(sum(map(ids.__contains__, piece.tolist())) for piece in pieces[::2])


@lru_cache(maxsize=KEPT)
def encode(tokenizer: Tokenizer, text: str) -> Ids:
    """Return the tokens [N] of a text, read-only and cached: members of a group ask with the same
    text.
    """
    ids = np.array(tokenizer(text, add_special_tokens=False)["input_ids"], dtype=np.int32)
    ids.flags.writeable = False
    return ids
