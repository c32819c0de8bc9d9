"""Finds chat templates that mark who speaks by plain words, which any text can hold.

Control tokens and tags in foreign text are broken up (`control_tokens.py`). `### Response:` or
`USER:` cannot be: texts are full of such words.
"""

from __future__ import annotations

import logging
from itertools import pairwise
from typing import TYPE_CHECKING

from rolecall.agents.control_tokens import TEMPLATE_DATE, controls

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase as Tokenizer

notices = logging.getLogger("rolecall.notices")
SAID = ("qxone", "qxtwo", "qxthree")  # what harmless messages say


def plain_frame(tokenizer: Tokenizer) -> str | None:
    """Return the words between two messages where nothing but words stands there; else None."""
    if not tokenizer.chat_template:
        return None
    roles = ("user", "assistant", "user")
    messages = [{"role": role, "content": text} for role, text in zip(roles, SAID, strict=True)]
    try:
        text = str(
            tokenizer.apply_chat_template(messages, tokenize=False, date_string=TEMPLATE_DATE)
        )
    except Exception:  # the boundary to templates: it refuses this order
        return None
    tokens = controls(tokenizer).tokens
    for before, after in pairwise(SAID):
        frame = text.partition(before)[2].partition(after)[0]
        if text.count(before) == 1 and not any(token in frame for token in tokens):
            return frame
    return None


def warn_of_plain_frame(tokenizer: Tokenizer, *, key: str) -> None:
    """Say so where texts of others can forge messages in a model's prompts."""
    frame = plain_frame(tokenizer)
    if frame is not None:
        notices.warning(
            "%s: the chat template marks messages by plain words (%r), so answers, tools and rows "
            "can forge messages of others in prompts; prefer a model whose template has tokens for "
            "that (docs/security.md)", key, frame,
        )  # fmt: skip
