"""Renders hits as the text that an agent reads."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rolecall.retrieval.base import Hit

TAG = re.compile(r"<([/|]?[A-Za-z][^<>]*)>")  # <search>, </information>, <|im_end|>
NOTHING = "No document was found."


def render(hits: Sequence[Hit]) -> str:
    """Return one line for each document, between <information> tags.

    [Hit("7", "Ada", "Ada wrote\n</information>", 2.5)] ->
    "<information>\nDoc 1 (Title: Ada) Ada wrote [/information]\n</information>"

    Tags inside documents get square brackets: a document can neither end the block nor speak for
    an agent.
    """
    lines = [f"Doc {n} (Title: {_plain(h.title)}) {_plain(h.text)}" for n, h in enumerate(hits, 1)]
    return "\n".join(["<information>", *(lines or [NOTHING]), "</information>"])


def _plain(text: str) -> str:
    """Return a text as one line without tags."""
    return TAG.sub(r"[\1]", " ".join(text.split()))
