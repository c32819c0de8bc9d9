"""Reads what the tags and the fenced blocks of a text hold."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

THINK_START, THINK_END = "<think>", "</think>"
BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*")
BRACE = re.compile(r"\\.|[{}]", re.DOTALL)  # an escaped brace is content
TOKEN = re.compile(r"[^\s{}$]+")
# A line that opens a block: indented or behind the mark of a list, its first word the language.
FENCE = re.compile(r"([ \t]*+(?:(?:[-*+]|\d{1,9}[.)])[ \t]++)?)(`{3,})([^`]*)")


def visible(text: str) -> str:
    """Text without its thinking: what follows the last end of it, up to where it begins again.

    visible("<think>4?</think> 4") -> "4"; visible("<think>4? I am not") -> ""
    """
    return text.rpartition(THINK_END)[2].partition(THINK_START)[0].strip()


def thinking(text: str) -> str:
    """Return what `visible` leaves out."""
    ended, _, rest = text.rpartition(THINK_END)
    parts = (ended.removeprefix(THINK_START), rest.partition(THINK_START)[2])
    return "\n".join(piece.strip() for piece in parts if piece.strip())


def has_one_thought(text: str) -> bool:
    """Return whether a text has `<think>` once and, behind it, `</think>` once.

    has_one_thought("<think>4?</think> 4") -> True; has_one_thought("4") -> False
    """
    before, start, rest = text.partition(THINK_START)
    if not start or THINK_START in rest or THINK_END in before:
        return False
    return rest.count(THINK_END) == 1


def find_tag(text: str, name: str) -> str | None:
    """Return the content of the last complete `<name>...</name>` after thinking; None if there is
    none.

    Tags are matched in any case. Reversed or nested tags make the text unreadable: None.
    """
    shown = visible(text)
    inside, content = None, None
    for match in re.finditer(rf"<(/?){re.escape(name)}>", shown, re.IGNORECASE):
        closes = bool(match[1])
        if closes == (inside is None):
            return None
        if closes:
            content, inside = shown[inside : match.start()].strip(), None
        else:
            inside = match.end()
    return content


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a text."""

    language: str  # the first word behind the fence in lower case; "" for a bare fence
    code: str

    @property
    def is_python(self) -> bool:
        """Return whether it is marked as Python: py, python, Python3, {.python}, ..."""
        return self.language.startswith("py")


def extract_code(text: str) -> str | None:
    """Return the last block that is marked as Python; None if there is none."""
    marked = [block.code for block in _blocks(text) if block.is_python]
    return marked[-1] if marked else None


def find_program(text: str) -> str | None:
    """Return the last block that is marked as Python, or a bare one if it is the only block."""
    blocks = list(_blocks(text))
    marked = [block.code for block in blocks if block.is_python]
    if marked:
        return marked[-1]
    return blocks[0].code if len(blocks) == 1 and not blocks[0].language else None


def _blocks(text: str) -> Iterator[Block]:
    """Yield the closed blocks in their order, read as Markdown does.

    A fence that stands deeper than the one that opened the block, or is shorter, is part of the
    code. Models often forget to close a block: a fence marked as Python ends a block of another
    language.
    """
    lines = text.split("\n")
    start: int | None = None  # of the open block's code
    indent, ticks, language = 0, 0, ""
    for number, line in enumerate(lines):
        match = FENCE.match(line)
        if match is None or match.end() < len(line):  # more backticks: code between them
            continue
        column, fence, words = len(match[1]), match[2], match[3].lstrip(" \t{.").split(maxsplit=1)
        word = words[0].casefold() if words else ""
        if start is None or (word.startswith("py") and not language.startswith("py")):
            start, indent, ticks, language = number + 1, column, len(fence), word
        elif not word and not match[1].strip() and column < indent + 4 and len(fence) >= ticks:
            yield Block(language, _code(lines[start:number], indent))
            start = None


def _code(lines: list[str], indent: int) -> str:
    """Join the lines of a block, moved back by as much as its fence and its first line are in."""
    first = next((line for line in lines if line.strip()), "")
    indent = min(indent, _margin(first))
    return "".join(f"{line[min(indent, _margin(line)) :]}\n" for line in lines)


def _margin(line: str) -> int:
    return len(line) - len(line.lstrip(" \t"))


def encodable(text: str) -> str:
    """Half of a surrogate pair, which JSON can hold and UTF-8 cannot, becomes `?`."""
    return text if text.isascii() else text.encode(errors="replace").decode()


def find_box(text: str) -> str | None:
    r"""Return the content of the last complete \boxed{} or \fbox{} after thinking, or None.

    A box without braces holds what stands behind it.
    """
    spoken = visible(text)
    closings = _closings(spoken)
    for box in reversed(list(BOX.finditer(spoken))):
        start = box.end()
        if start in closings:
            return spoken[start + 1 : closings[start]].strip()
        token = TOKEN.match(spoken, start)
        if token:
            return token.group().rstrip(".,;:*)")
    return None


def _closings(text: str) -> dict[int, int]:
    """Position of each opening brace that is closed -> position of its closing one."""
    pairs: dict[int, int] = {}
    opened: list[int] = []
    for match in BRACE.finditer(text):
        if match.group() == "{":
            opened.append(match.start())
        elif match.group() == "}" and opened:
            pairs[opened.pop()] = match.start()
    return pairs
