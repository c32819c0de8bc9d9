"""Reads what the tags of a text hold."""

from __future__ import annotations

import re

THINK_START, THINK_END = "<think>", "</think>"
FENCES = ("```python", "```py")  # lines that open a block


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
    lines = text.split("\n")
    opened: int | None = None
    found: list[str] | None = None
    for number, line in enumerate(lines):
        if opened is None and line.rstrip() in FENCES:
            opened = number + 1
        elif opened is not None and line.rstrip() == "```":
            found, opened = lines[opened:number], None
    return None if found is None else "".join(f"{line}\n" for line in found)


def encodable(text: str) -> str:
    """Half of a surrogate pair, which JSON can hold and UTF-8 cannot, becomes `?`."""
    return text if text.isascii() else text.encode(errors="replace").decode()
