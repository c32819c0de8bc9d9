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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from rolecall.agents.control_tokens import SOUGHT, Controls, controls, empty_schema
from rolecall.agents.tool_form import CALL_ID, call_message, tool_form
from rolecall.agents.turn_form import render, turn_form
from rolecall.core.json_types import JsonObject, JsonValue
from rolecall.core.types import Ids, Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase as Tokenizer
else:
    Tokenizer = Any  # a config is checked before transformers is imported, which takes seconds

KEPT = 256  # texts whose tokens are remembered
DEEPEST = 100  # sampled turns that one call goes back through, each inside the next
KEPT_PROMPTS = 2048  # of as many conversations that go on


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
    template, listed = str(tokenizer.chat_template), tools or []
    schemas = _break_schemas(tokenizer, template, _Schemas(repr(listed), listed))
    sampled = [index for index, message in enumerate(messages) if message.tokens is not None]
    for index in sampled[DEEPEST::DEEPEST]:  # each is remembered, and the next goes on from it
        _prompt_ids(tokenizer, _asked(tokenizer, messages[:index], options, schemas))
    return _prompt_ids(tokenizer, _asked(tokenizer, messages, options, schemas)).copy()


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
class _Schemas:
    """The schemas of tools, which are the same if their text is."""

    text: str
    listed: list[JsonObject] = field(compare=False)


@lru_cache(maxsize=KEPT)
def _break_schemas(tokenizer: Tokenizer, template: str, schemas: _Schemas) -> _Schemas:
    """Return schemas in which foreign text forges nothing."""
    broken = controls(tokenizer).broken_schema(schemas.listed)
    return _Schemas(repr(broken), broken)


@dataclass(frozen=True, slots=True)
class _Asked:
    """The inputs of a prompt, which is the same if its key is."""

    key: tuple[object, ...]
    messages: list[Message] = field(compare=False)
    options: dict[str, object] = field(compare=False)
    schemas: _Schemas


def _asked(
    tokenizer: Tokenizer,
    messages: list[Message],
    options: dict[str, object],
    schemas: _Schemas,
    *,
    pick: Callable[[Message], tuple[object, ...]] | None = None,
) -> _Asked:
    """Return the arguments of the template. `pick`: what of each message the result depends on."""
    template, chosen = str(tokenizer.chat_template), repr(sorted(options.items()))
    fields = map(pick or _all_fields, messages)
    return _Asked((template, *fields, chosen), messages, options, schemas)


def _all_fields(message: Message) -> tuple[object, ...]:
    sampled = None if message.tokens is None else message.tokens.tobytes()
    return (message.role, message.content, message.name, message.own, message.called, message.tail,
            message.calls, sampled)  # fmt: skip


@lru_cache(maxsize=KEPT_PROMPTS)
def _prompt_ids(tokenizer: Tokenizer, asked: _Asked) -> Ids:
    """Return the prompt's tokens from a cache: members of a group begin with the same prompt, and a
    conversation goes on from its last one.
    """
    messages, options, schemas = asked.messages, asked.options, asked.schemas
    last = _find_sampled(messages)
    first, behind = _written_tokens(tokenizer, messages, options=options, schemas=schemas)
    _check(tokenizer, messages, [first, behind], options=options, schemas=schemas)
    if last is None:
        return behind
    sampled = messages[last].tokens
    assert sampled is not None, "a sampled turn has tokens"
    # The prompt that the turn answered, so that this one begins with that one and what was sampled,
    # however the template writes earlier turns.
    before = (
        _prompt_ids(tokenizer, _asked(tokenizer, messages[:last], options, schemas))
        if last
        else first
    )
    sampled = _without_end(tokenizer, sampled) if messages[last].tail else sampled
    return np.concatenate([before, sampled, behind]).astype(np.int32)


def _find_sampled(messages: list[Message]) -> int | None:
    """Return the index of the last sampled turn."""
    for index in reversed(range(len(messages))):
        if messages[index].tokens is not None:
            return index
    return None


def _written_tokens(
    tokenizer: Tokenizer,
    messages: list[Message],
    shown: list[JsonObject] | None = None,
    *,
    options: dict[str, object],
    schemas: _Schemas,
) -> tuple[Ids, Ids]:
    """Return the tokens before a sampled turn that stands first, and those behind the last one.

    Without a sampled turn the second are the whole prompt. `shown`: what the template gets in place
    of the messages.
    """
    nothing = np.zeros(0, np.int32)
    last = _find_sampled(messages)
    text, mark = _render_marked(tokenizer, messages, shown, options=options, schemas=schemas)
    if last is None:
        return nothing, encode(tokenizer, text)
    after = _text_after(tokenizer, text, mark, messages[last])
    tail = controls(tokenizer).broken(messages[last].tail)
    sampled = messages[last].tokens
    assert sampled is not None, "a sampled turn has tokens"
    if tail:
        sampled, after = _without_end(tokenizer, sampled), (SOUGHT if shown else tail) + after
    behind = _encode_after(tokenizer, after, sampled)
    return nothing if last else encode(tokenizer, text.partition(mark)[0]), behind


def _render_marked(
    tokenizer: Tokenizer,
    messages: list[Message],
    shown: list[JsonObject] | None,
    *,
    options: dict[str, object],
    schemas: _Schemas,
) -> tuple[str, str]:
    """Return the text of a conversation with marks for its sampled turns, and the last mark."""
    if shown is None:
        shown = show(tokenizer, messages)
    places = [index for index, message in enumerate(messages) if message.tokens is not None]
    marks = _marks(len(places), absent_from=schemas.text + json.dumps(shown))
    marked = list(shown)
    for index, mark in zip(places, marks, strict=True):
        marked[index] = _marked(tokenizer, shown[index], messages[index], mark)
    text = render(tokenizer, marked, asks=True, options=options, tools=schemas.listed)
    return text, marks[-1] if marks else ""


def _marked(tokenizer: Tokenizer, entry: JsonObject, message: Message, mark: str) -> JsonObject:
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


def show(tokenizer: Tokenizer, messages: list[Message]) -> list[JsonObject]:
    """Return messages for the template, in which foreign text forges nothing."""
    forbidden = controls(tokenizer)
    return [_shown(message, forbidden) for message in messages]


def _shown(message: Message, known: Controls) -> JsonObject:
    """Return a message for the template, with what foreign text forges broken up."""
    framed = message.role == "tool"
    content = known.broken(message.content, own=message.own, framed=framed)
    name = known.broken(message.name, framed=True)
    role = known.broken(message.role, framed=True)
    shown: JsonObject = {"role": role, "content": content} | ({"name": name} if name else {})
    shown |= _write_calls(message, known.broken_schema)
    return shown | ({"tool_call_id": CALL_ID} if framed else {})


def _write_calls(message: Message, clean: Callable[[JsonValue], Any]) -> JsonObject:
    """Return the calls of a message for the template, with names and arguments made clean."""
    calls = [
        call_message(clean(name), arguments=clean(json.loads(arguments)), number=number)
        for number, (name, arguments) in enumerate(message.calls)
    ]
    return {"tool_calls": calls} if calls else {}


def _check(
    tokenizer: Tokenizer,
    messages: list[Message],
    written: Sequence[Ids],
    *,
    options: dict[str, object],
    schemas: _Schemas,
) -> None:
    """Check that no text adds a control token to those of the layout; raises ValueError otherwise.

    Tokenizers that change a text before they look for tokens in it could make one from a text that
    holds none, so this counts tokens and not texts. `written`: what `_written_tokens` returns; what
    is before the last sampled turn was checked when that was sampled.
    """
    forbidden = controls(tokenizer)
    bare = _asked(tokenizer, messages, options, schemas, pick=_bare_fields)
    if _number(written, forbidden.ids) <= _number_written(tokenizer, bare):
        return
    texts = [m.tail for m in messages]
    texts += [text for m in messages if m.tokens is None for text in (m.text, m.name)]
    for text in [*texts, json.dumps(schemas.listed, ensure_ascii=False, default=str)]:
        shown = forbidden.broken(text, framed=True)
        if _number([encode(tokenizer, shown)], forbidden.ids):
            raise ValueError(f"a prompt would hold a forged control token, from {text[:200]!r}")
    raise ValueError(
        f"a prompt would hold a forged control token, from one of {[t[:200] for t in texts]}"
    )


def _bare_fields(message: Message) -> tuple[object, ...]:
    """Return what decides how many control tokens the template writes around a message."""
    last = None if message.tokens is None else message.tokens[-1:].tobytes()
    calls = repr(_write_calls(message, empty_schema))
    return message.role, *own_tags(message), bool(message.name), bool(message.tail), calls, last


@lru_cache(maxsize=KEPT)
def _number_written(tokenizer: Tokenizer, asked: _Asked) -> int:
    """Return how many control tokens the template writes itself around what is said."""
    bare = [
        {"role": entry.role, "content": SOUGHT + "".join(own_tags(entry))}
        | ({"name": SOUGHT} if entry.name else {})
        | ({"tool_call_id": CALL_ID} if entry.role == "tool" else {})
        | _write_calls(entry, empty_schema)
        for entry in asked.messages
    ]
    listed = empty_schema(asked.schemas.listed)
    schemas = _Schemas(repr(listed), listed)
    empty = _written_tokens(tokenizer, asked.messages, bare, options=asked.options, schemas=schemas)
    return _number(empty, controls(tokenizer).ids)


def own_tags(message: Message) -> list[str]:
    """Return the tags of the content that we wrote, in their order."""
    if not message.own:
        return []
    longest = sorted(message.own, key=len, reverse=True)
    return re.findall("|".join(map(re.escape, longest)), message.content)


def _number(pieces: Sequence[Ids], ids: frozenset[int]) -> int:
    """Return how many of `ids` there are among tokens."""
    return sum(sum(map(ids.__contains__, piece.tolist())) for piece in pieces)


@lru_cache(maxsize=KEPT)
def encode(tokenizer: Tokenizer, text: str) -> Ids:
    """Return the tokens [N] of a text, read-only and cached: members of a group ask with the same
    text.
    """
    ids = np.array(tokenizer(text, add_special_tokens=False)["input_ids"], dtype=np.int32)
    ids.flags.writeable = False
    return ids
