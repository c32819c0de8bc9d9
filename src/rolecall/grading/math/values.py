r"""Reads what a tidy maths answer plainly is: number, numeral, text, series or formula.

read(r"1\frac{1}{2}") -> Number(3/2); read("1011_2") -> Numeral("1011", 2)
read(r"\{1,x\}") -> Series("{}", (Number(1), Formula("x"))); read(r"\sqrt{8}") -> Formula
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from rolecall.grading.math.tidy import MOST_CHARS, WORDS

MAX_DEPTH = 8  # nested brackets that are read; deeper ones stay a formula

DECIMAL = re.compile(
    r"([+-]?)(\d{1,3}(?:,\d{3})+|\d{1,3}(?: \d{3})+|\d*)(?:\.(\d*))?(?:[eE]([+-]?\d{1,4}))?"
)
PART = r"\s?(\{[^{}]*\}|\d)"
FRACTION = re.compile(r"([+-]?)\\frac" + PART + PART)
SLASHED = re.compile(r"\(?([^/()]+)\)?/\(?([^/()]+)\)?")
MIXED = re.compile(r"([+-]?)(\d+)(?:(\\frac.+)| (\d+/\d+))")
SCIENTIFIC = re.compile(r"([^\\*^]*?)(\\times|\\cdot|\*|^|^[+-])10\^\{?([+-]?\d{1,4})\}?")
NUMERAL = re.compile(r"(\d[\dA-F]*)_\{?(\d{1,2})\}?")
MARKED = re.compile(WORDS + r"\{([^{}]*)\}")
CHOICE = re.compile(r"\(?([A-Z])\)?")
BRACKETS = [(r"\{", r"\}"), ("{", "}"), ("(", ")"), ("[", "]"), ("(", "]"), ("[", ")")]
WORD = re.compile(r"[A-Za-z]{3,}")  # tidy text: a sentence has become one word


@dataclass(frozen=True, slots=True)
class Number:
    value: Fraction
    percent: bool = False


@dataclass(frozen=True, slots=True)
class Numeral:
    """Digits in a stated base: the notation is the answer, not only its value."""

    digits: str
    base: int


@dataclass(frozen=True, slots=True)
class Text:
    words: str  # lower case, without spaces
    marked: bool  # written in a text command: certainly no product of variables


@dataclass(frozen=True, slots=True)
class Series:
    brackets: str  # "()", "[)", ...; "{}" for a set and "" for a bare list: both unordered
    items: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class Formula:
    latex: str


Value = Number | Numeral | Text | Series | Formula


def read(text: str, depth: int = 0) -> Value:
    """Read what a tidy answer plainly is; a formula where only algebra can tell."""
    if len(text) > MOST_CHARS:
        return Formula(text)
    marked = MARKED.fullmatch(text)
    if marked:
        words = marked[1].strip(" .")
        number = _number(words)
        letter = CHOICE.fullmatch(words.upper())
        return number or Text((letter[1] if letter else words).casefold(), marked=True)
    number = _number(text)
    if number:
        return number
    numeral = NUMERAL.fullmatch(text)
    if numeral:
        return Numeral(numeral[1].lstrip("0") or "0", int(numeral[2]))
    words = CHOICE.fullmatch(text) or WORD.fullmatch(text)
    if words:
        return Text((words[1] if words.lastindex else text).casefold(), marked=False)
    return _series(text, depth) if depth < MAX_DEPTH else Formula(text)


def _decimal(text: str) -> Fraction | None:
    match = DECIMAL.fullmatch(text)
    if not match or not (match[2] or match[3]):
        return None
    whole = re.sub("[, ]", "", match[2])
    digits = int((whole + (match[3] or "")) or "0")
    value = digits * Fraction(10) ** (int(match[4] or 0) - len(match[3] or ""))
    return -value if match[1] == "-" else value


def _ratio(over: str, under: str) -> Fraction | None:
    top, bottom = _decimal(over.strip("{}")), _decimal(under.strip("{}"))
    return None if top is None or not bottom else top / bottom


def _rational(text: str) -> Fraction | None:
    plain = _decimal(text)
    if plain is not None:
        return plain
    if match := FRACTION.fullmatch(text):
        value = _ratio(match[2], match[3])
        return -value if value is not None and match[1] == "-" else value
    if match := SLASHED.fullmatch(text):
        return _ratio(match[1], match[2])
    return None


def _number(text: str) -> Number | None:
    bare = text.removesuffix("%").removesuffix("\\").strip()
    percent = text.endswith("%")
    value = _rational(bare)
    if value is None and (match := MIXED.fullmatch(bare)):
        rest = _rational(match[3] or match[4])
        if rest is not None and 0 < rest < 1:
            value = int(match[2]) + rest
            value = -value if match[1] == "-" else value
    if value is None and (match := SCIENTIFIC.fullmatch(bare)):
        factor = _decimal(match[1]) if match[1] else Fraction(1)
        if factor is not None:
            value = factor * Fraction(10) ** int(match[3])
            value = -value if match[2] == "-" else value
    return None if value is None else Number(value, percent)


def _series(text: str, depth: int) -> Series | Value:
    inner, brackets = text, ""
    for opening, closing in BRACKETS:
        if text.startswith(opening) and text.endswith(closing):
            inner = text[len(opening) : len(text) - len(closing)]
            brackets = opening[-1] + closing[-1]
            break
    items = _split(inner)
    if items is None or (len(items) == 1 and not brackets) or not all(items):
        return Formula(text)
    if len(items) == 1 and brackets in ("()", "{}"):
        return read(items[0], depth + 1)
    return Series(brackets, tuple(read(item, depth + 1) for item in items))


def _split(text: str) -> list[str] | None:
    """Parts between the commas outside all brackets; None if the brackets do not match up."""
    parts, start, level = [], 0, 0
    for at, letter in enumerate(text):
        level += (letter in "([{") - (letter in ")]}")
        if level < 0:
            return None
        if letter in ",;" and level == 0:
            parts.append(text[start:at].strip())
            start = at + 1
    return [*parts, text[start:].strip()] if level == 0 else None
