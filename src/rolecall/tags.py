"""Text in, what its tags hold out."""

from __future__ import annotations

import re

THINK_END = "</think>"
FENCE = re.compile(r"^```(?:python|py)[^\S\n]*\n(.*?)^```[^\S\n]*$", re.DOTALL | re.MULTILINE)


def visible(text: str) -> str:
    """Text without its thinking, which may have been opened in the prompt."""
    return text.rpartition(THINK_END)[2].strip()


def find_tag(text: str, name: str) -> str | None:
    """Content of the last complete `<name>...</name>` after thinking; None if there is none.

    Tags are matched in any case. Reversed or nested tags make the text unreadable: None.
    """
    said = visible(text)
    inside, found = None, None
    for match in re.finditer(rf"<(/?){re.escape(name)}>", said, re.IGNORECASE):
        closes = bool(match[1])
        if closes == (inside is None):
            return None
        if closes:
            found, inside = said[inside : match.start()].strip(), None
        else:
            inside = match.end()
    return found


def code_of(text: str) -> str | None:
    """The last fenced python block of a text."""
    blocks = FENCE.findall(text)
    return blocks[-1] if blocks else None
