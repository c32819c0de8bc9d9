"""Finds out how a chat template ends what an assistant says, and what it does with a system text.

A turn that a model samples ends with a control token. Which one is what the template writes there,
not what the tokenizer calls its end: a base model of Qwen3 has `<|endoftext|>` and the template of
chats `<|im_end|>`; gpt-oss ends a turn with `<|return|>` and writes `<|end|>` of it later.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from rolecall.agents.control_tokens import TEMPLATE_DATE, controls
from rolecall.core.json_types import JsonObject

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase as Tokenizer

MARK = "turn0f1e2d3c"  # stands for what is said
USER: JsonObject = {"role": "user", "content": "question"}
SAID: JsonObject = {"role": "assistant", "content": MARK}


@dataclass(frozen=True, slots=True)
class TurnForm:
    """The form in which a template writes the turns of an assistant."""

    end: str  # the control token that ends a turn, or "" where the tokenizer has none
    writes_end: bool  # whether the template writes an end behind the last turn of a conversation
    has_system_role: bool  # whether it takes a message of the role `system`

    tokens: frozenset[str]  # the control tokens of the layout that are one token

    def strip_end(self, text: str, *, last: str) -> str:
        """Return what a template writes behind a sampled turn, without a second end of it.

        `last`: the text of the token that the turn ends with. A turn that was cut gets the end.
        """
        if last not in self.tokens:
            return text
        begin = _leading_control(text, self.tokens)
        if begin is not None and (begin[1] == last or self.writes_end):
            return text[begin.end() :]
        return text

    def skip_to_control(self, text: str) -> str:
        """Return the text from its first control token on."""
        places = [text.find(token) for token in self.tokens if token in text]
        return text[min(places) :] if places else text


def turn_form(tokenizer: Tokenizer) -> TurnForm:
    """Return the form of a tokenizer and the template that it has now."""
    return _turn_form(tokenizer, str(tokenizer.chat_template))


def stop_ids(tokenizer: Tokenizer, ends: int | Sequence[int]) -> list[int]:
    """Return the ids that end a turn: the model's own, the tokenizer's, and the template's.

    `ends`: `eos_token_id` of the model's generation config.
    """
    own = [ends] if isinstance(ends, int) else list(ends)
    of_template = tokenizer.convert_tokens_to_ids(turn_form(tokenizer).end)
    ids = {*own, tokenizer.eos_token_id, of_template}
    return sorted(one for one in ids if isinstance(one, int))


def render(
    tokenizer: Tokenizer,
    messages: list[JsonObject],
    *,
    asks: bool,
    options: dict[str, object] | None = None,
    tools: list[JsonObject] | None = None,
) -> str:
    """Return the text of a conversation; `asks`: with the beginning of the assistant's answer."""
    text: str = tokenizer.apply_chat_template(
        messages, tools=tools or None, tokenize=False, add_generation_prompt=asks,
        date_string=TEMPLATE_DATE, **(options or {}),
    )  # fmt: skip
    return text


@lru_cache(maxsize=64)
def _turn_form(tokenizer: Tokenizer, template: str) -> TurnForm:
    tokens = frozenset(filter(partial(_is_token, tokenizer), controls(tokenizer).tokens))
    after_last = _find_control(_after_mark(tokenizer, [USER, SAID], asks=False), tokens)
    after = _find_control(_after_mark(tokenizer, [USER, SAID, USER], asks=True), tokens)
    stops = {str(tokenizer.eos_token)}
    end = after_last or (after if after in stops else "") or str(tokenizer.eos_token or "")
    return TurnForm(end, bool(after_last), _takes_system(tokenizer), tokens)


def _is_token(tokenizer: Tokenizer, text: str) -> bool:
    return len(tokenizer(text, add_special_tokens=False)["input_ids"]) == 1


def _after_mark(tokenizer: Tokenizer, messages: list[dict[str, str]], *, asks: bool) -> str:
    """Return what is written behind the assistant's words; "" where the template takes none."""
    try:
        return render(tokenizer, messages, asks=asks).rpartition(MARK)[2]
    except Exception:  # the boundary to templates, which raise whatever they like
        return ""


def _find_control(text: str, tokens: frozenset[str]) -> str:
    match = _leading_control(text, tokens)
    return "" if match is None else match[1]


def _leading_control(text: str, tokens: frozenset[str]) -> re.Match[str] | None:
    """Find a control token at the beginning, behind spaces: Llama 2 writes one before `</s>`."""
    names = "|".join(re.escape(one) for one in sorted(tokens, key=len, reverse=True))
    return re.match(rf"\s*({names})", text) if names else None


def _takes_system(tokenizer: Tokenizer) -> bool:
    try:
        text = render(tokenizer, [{"role": "system", "content": MARK}, USER], asks=True)
    except Exception:  # Gemma 1 and Mistral 0.1 raise
        return False
    return MARK in text
