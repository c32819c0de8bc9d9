r"""Rewrites a maths answer in its one plain LaTeX spelling.

tidy(r"$\left( 3,\, \dfrac{\pi}{2} \right)$.") -> r"(3,\frac{\pi}{2})"

Units, degrees, dollar signs and spacing carry no value and go; a percent sign stays.
"""

from __future__ import annotations

import re

SYMBOLS = str.maketrans(
    {
        "\u2212": "-",
        "\u2013": "-",
        "\u00d7": r"\times ",
        "\u00b7": r"\cdot ",
        "\u00f7": "/",
        "\u00b0": r"^\circ",
        "\u03c0": r"\pi ",
        "\u221e": r"\infty ",
        "\u222a": r"\cup ",
        "\u2208": r"\in ",
        "\u00b1": r"\pm ",
        "\u2264": r"\le ",
        "\u2265": r"\ge ",
        "\u00b2": "^2",
        "\u00b3": "^3",
        "\u00a0": " ",
        "\n": " ",
    }
)
MOST_CHARS = 2_000  # of what is read as an answer
WORDS = r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox)\s*+"
REPLACEMENTS = [
    (re.compile(r"\\!\s*"), ""),
    (re.compile(r"(?<!\\)\\[()\[\]]"), " "),
    (re.compile(r"(?<!\\)\\[,;:> ]|~|\\q?quad(?![A-Za-z])"), " "),
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"\\\$|\$"), ""),
    (re.compile(r"\\(?:left|right|big|Big|bigg|Bigg|displaystyle)(?![A-Za-z])"), ""),
    (re.compile(r"\\[dtc]frac(?![A-Za-z])"), r"\\frac"),
    (
        re.compile(
            r"(?<!\s)\s*+\^\s*+(?:\{\s*+\\circ\s*+\}|\\circ(?![A-Za-z]))|\\degree(?![A-Za-z])"
        ),
        "",
    ),
    (re.compile(r"^\s*+" + WORDS + r"\{(?=[^{}\d]*+\d)([^{}]*+)\}\s*$"), r"\1"),
    (
        re.compile(r"(?:,|(?<!\s))\s*+" + WORDS + r"\{\s*+,?+\s*+(?:and|or)\s*+\}"),
        ",",
    ),
]
SCALE = r"(?:thousand|million|billion|trillion|hundred|dozen)"
NO_UNIT = r"(?:" + SCALE + r"|sqrt|sinh|cosh|tanh|arc|alpha|beta|gamma|delta|theta|lambda|omega)"
UNIT_TEXT = re.compile(
    r"(?<=[\w)}\]])\s*(?:" + WORDS + r"\{(?!\s*" + SCALE + r")[^{}]*\}(?:\^\{?-?\d\}?)?\s*)+$"
)
# A bare word after a plain number is a unit if it is too long for a product of variables.
UNIT_WORD = re.compile(
    r"^([+-]?\.?\d[\d.,]*(?:/\d+)?)\s*(?!" + NO_UNIT + r")"
    r"(?:[A-Za-z]{4,}|[ck]?m|mm|ft|in|kg|mg|lbs?|oz|mph|hrs?|min|sec|deg|pm|am)"
    r"(?:[\s/]+[A-Za-z.]+|\^\{?\d\}?)*$"
)
SPACES = re.compile(r"(\\\\)\s*|(\\[A-Za-z]+)\s+(?=[A-Za-z])|(?<=\d)\s+(?=\d)|\s+")


def tidy(answer: str) -> str:
    """One spelling for answers that differ only in typography or unit.

    A text of more than 2,000 characters is no answer and stays as it is.
    """
    if len(answer) > MOST_CHARS:
        return answer.strip()
    text = answer.translate(SYMBOLS).strip()
    for pattern, replacement in REPLACEMENTS:
        text = pattern.sub(replacement, text)
    text = _strip_end(text)
    text = UNIT_WORD.sub(r"\1", UNIT_TEXT.sub("", text))
    return SPACES.sub(_space, _strip_end(text)).strip()


def _strip_end(text: str) -> str:
    text = text.strip()
    return text if text.endswith("..") else text.rstrip(". ")


def _space(match: re.Match[str]) -> str:
    """Keeps the space that LaTeX or a pair of digits needs, drops every other."""
    if match[1] or match[2]:
        return (match[1] or match[2]) + " "
    before = match.string[match.start() - 1 : match.start()]
    after = match.string[match.end() : match.end() + 1]
    return " " if before.isdigit() and after.isdigit() else ""
