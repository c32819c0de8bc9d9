"""Text in, what its tags hold out."""

from __future__ import annotations

import re

THINK_START, THINK_END = "<think>", "</think>"
FENCE = re.compile(r"^```(?:python|py)[^\S\n]*\n(.*?)^```[^\S\n]*$", re.DOTALL | re.MULTILINE)


def visible(text: str) -> str:
    """Text without its thinking: what follows the last end of it, up to where it begins again.

    visible("<think>4?</think> 4") -> "4"; visible("<think>4? I am not") -> ""
    """
    return text.rpartition(THINK_END)[2].partition(THINK_START)[0].strip()


def thinking(text: str) -> str:
    """What `visible` leaves out."""
    ended, _, rest = text.rpartition(THINK_END)
    parts = (ended.removeprefix(THINK_START), rest.partition(THINK_START)[2])
    return "\n".join(part.strip() for part in parts if part.strip())


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
