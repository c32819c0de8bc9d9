"""Writes an answer that nobody sampled, as a row of a file holds it, as the model would say it.

The chat template writes the whole conversation; what it writes behind the prompt is the answer: the
thought that it expects, the words, the end. So a row is trained as a sampled turn is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rolecall.agents.chat_template import encode, encode_in_context, fold_system, show
from rolecall.agents.turn_form import render, turn_form
from rolecall.core.json_types import JsonObject
from rolecall.core.tags import THINK_END, THINK_START, thinking, visible
from rolecall.core.types import Ids, Message

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase as Tokenizer


CONTEXT = 8  # tokens of a prompt that decide how what follows it is tokenised


@dataclass(frozen=True, slots=True)
class WrittenTurn:
    """An answer as text: `before` and `after` are what the template writes around the words."""

    before: str
    words: str
    after: str  # up to the token that ends the turn

    @property
    def text(self) -> str:
        return self.before + self.words + self.after


def write_turn(
    tokenizer: Tokenizer, messages: list[Message], text: str, *, options: dict[str, object]
) -> WrittenTurn:
    """Return what the template writes of an answer to these messages.

    gpt-oss and "4" -> before "<|channel|>final<|message|>", words "4", after "<|return|>". Where
    the template does not go on from its own prompt, or changes the words, they follow the prompt as
    they are, with one thought.
    """
    shown = show(tokenizer, fold_system(tokenizer, messages))
    prompt = render(tokenizer, shown, asks=True, options=options)
    end = turn_form(tokenizer).end
    for answer in _forms(text):
        written = _behind(tokenizer, prompt, [*shown, answer], options=options)
        whole = _up_to(written, end)
        pieces = [piece for piece in (thinking(text), visible(text)) if piece]
        if whole is None or not all(piece in whole for piece in pieces):
            continue
        words = next((form for form in (text, text.strip()) if form and form in whole), "")
        if not words:  # the thought and the words stand apart
            return WrittenTurn("", whole.removesuffix(end), end)
        before, _, after = whole.rpartition(words)
        return WrittenTurn(before, words, after)
    return _follow(prompt.rstrip(), text, end)


def _follow(prompt: str, text: str, end: str) -> WrittenTurn:
    """Return an answer behind its prompt as it is, with one thought: the prompt's or its own."""
    if prompt.endswith(THINK_END):
        return WrittenTurn("", visible(text), end)
    if not prompt.endswith(THINK_START):
        return WrittenTurn("", text, end)
    if THINK_END in text:
        return WrittenTurn("", text.removeprefix(THINK_START).lstrip("\n"), end)
    return WrittenTurn(f"\n{THINK_END}\n\n", text, end)


def write_ids(tokenizer: Tokenizer, prompt: Ids, turn: WrittenTurn) -> Ids:
    """Return the tokens [T] of an answer to a prompt [P].

    They are those that it has behind the last words of the prompt, unless a token spans both.
    """
    last = tokenizer.decode(prompt[-CONTEXT:])
    before, both = encode(tokenizer, last), encode(tokenizer, last + turn.text)
    if both[: len(before)].tolist() == before.tolist():
        return both[len(before) :]
    return encode_in_context(tokenizer, turn.text)


def _forms(text: str) -> list[JsonObject]:
    """Return the messages that templates may take an answer as: its thought apart, or inside."""
    inside = {"role": "assistant", "content": text}
    thought = thinking(text)
    if not thought:
        return [inside]
    apart = {"role": "assistant", "content": visible(text)}
    return [apart | {"reasoning_content": thought, "thinking": thought}, inside]


def _behind(
    tokenizer: Tokenizer, prompt: str, messages: list[JsonObject], *, options: dict[str, object]
) -> str | None:
    """Return what the template writes behind its own prompt, if it goes on from there."""
    try:
        whole = render(tokenizer, messages, asks=False, options=options)
    except Exception:  # the boundary to templates, which raise whatever they like
        return None
    return whole.removeprefix(prompt) if whole.startswith(prompt) else None


def _up_to(text: str | None, end: str) -> str | None:
    """Return the text up to the end of the turn, which is added where it is missing."""
    if text is None:
        return None
    if end and end in text:
        return text[: text.rindex(end) + len(end)]
    return text.rstrip("\n") + end
