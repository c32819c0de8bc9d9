"""Finds the arithmetic steps of a text and checks each of them.

"3 * 4 = 12, then 12 + 5 = 18" has two steps, one of them right. A step is an equality of
plain numbers with an operator on at least one side; what holds a variable is left alone. All is
computed in exact fractions; a decimal on the right may be a rounding: 10 / 3 = 3.33.
"""

from __future__ import annotations

import re
from fractions import Fraction
from itertools import pairwise

MAX_RUN = 400  # characters of a chain of equalities that is read
MAX_DEPTH = 20  # nested brackets

SIGNS = str.maketrans({"\u00d7": "*", "\u00b7": "*", "\u00f7": "/", "\u2212": "-", "$": None})
LATEX = [
    (re.compile(r"\\[dtc]?frac\{([^{}]*)\}\{([^{}]*)\}"), r"((\1)/(\2))"),
    (re.compile(r"\\(?:times|cdot)(?![A-Za-z])"), "*"),
    (re.compile(r"\\div(?![A-Za-z])"), "/"),
    (re.compile(r"\\[()\[\]]"), " "),
    (re.compile(r"(?<=\d),(?=\d{3}(?!\d))"), ""),
]
RUN = re.compile(r"(?:\d+(?:\.\d+)?|[-+*/()=]|[ \t])+", re.ASCII)
TOKEN = re.compile(r"\s*(\d+(?:\.\d+)?|[-+*/()])", re.ASCII)
NUMERAL = re.compile(r"\s*-?\d+\.(\d+)\s*", re.ASCII)


def steps(text: str) -> list[tuple[str, bool]]:
    """Return each step as written and whether it is right: [("3 * 4 = 12", True), ...]."""
    plain = text.translate(SIGNS)
    for pattern, replacement in LATEX:
        plain = pattern.sub(replacement, plain)
    verdicts = []
    for run in RUN.finditer(plain):
        if "=" not in run[0] or len(run[0]) > MAX_RUN:
            continue
        sides = run[0].split("=")
        before = plain[max(0, run.start() - 10) : run.start()]
        if _belongs(before[-1:]) and not run[0][0].isspace():
            sides[0] = ""  # the rest of "2x", "2^3"
        elif sides[0].lstrip().startswith("-") and _belongs(before.rstrip()[-1:]):
            sides[0] = ""  # the rest of "y - 3"
        if _belongs(plain[run.end() : run.end() + 1]) and run[0][-1] not in " \t(":
            sides[-1] = ""
        sides[-1] = sides[-1].rstrip(" \t(")  # "= 12 (as before)"
        for left, right in pairwise(sides):
            verdict = _equal(left, right)
            if verdict is not None:
                verdicts.append((f"{left.strip()} = {right.strip()}", verdict))
    return verdicts


def _belongs(neighbour: str) -> bool:
    """Return whether a character makes the number beside it part of something else: x, ^, %."""
    return neighbour.isalnum() or (neighbour != "" and neighbour in "_^%:\\")


def _equal(left: str, right: str) -> bool | None:
    """Return whether both sides are equal; None where this is no step."""
    try:
        (a, left_counts), (b, right_counts) = _value(left), _value(right)
    except ValueError:
        return None
    except ZeroDivisionError:
        return False
    if not left_counts and not right_counts:
        return None
    rounded = NUMERAL.fullmatch(right)
    return a == b or (rounded is not None and abs(a - b) <= Fraction(1, 2 * 10 ** len(rounded[1])))


def _value(text: str) -> tuple[Fraction, bool]:
    """Value of an expression, and whether it had an operator. Raises ValueError if it is none."""
    tokens, position = [], 0
    text = text.rstrip()
    while position < len(text):
        match = TOKEN.match(text, position)
        if match is None:
            raise ValueError(text)
        tokens.append(match[1])
        position = match.end()
    tokens.reverse()
    value = _sum(tokens, 0)
    if tokens:
        raise ValueError(text)
    return value, bool(re.search(r"[\d)]\s*[-+*/]", text))


def _sum(tokens: list[str], depth: int) -> Fraction:
    value = _product(tokens, depth)
    while tokens and tokens[-1] in "+-":
        sign = 1 if tokens.pop() == "+" else -1
        value += sign * _product(tokens, depth)
    return value


def _product(tokens: list[str], depth: int) -> Fraction:
    value = _factor(tokens, depth)
    while tokens and tokens[-1] in "*/":
        if tokens.pop() == "*":
            value *= _factor(tokens, depth)
        else:
            value /= _factor(tokens, depth)
    return value


def _factor(tokens: list[str], depth: int) -> Fraction:
    if not tokens or depth > MAX_DEPTH:
        raise ValueError("no number")
    token = tokens.pop()
    if token == "-":
        return -_factor(tokens, depth + 1)
    if token == "(":
        value = _sum(tokens, depth + 1)
        if not tokens or tokens.pop() != ")":
            raise ValueError("an open bracket")
        return value
    return Fraction(token)
