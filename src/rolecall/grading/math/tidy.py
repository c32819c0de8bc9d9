r"""Rewrites a maths answer in its one plain LaTeX spelling.

tidy(r"$\left( 3,\, \dfrac{\pi}{2} \right)$.") -> r"(3,\frac{\pi}{2})"

Units, degrees, dollar signs and spacing carry no value and go; a percent sign stays.
"""

from __future__ import annotations

import re
from fractions import Fraction

from rolecall.grading.math.symbols import write_latex

MOST_CHARS = 2_000  # of what is read as an answer
WORDS = r"\\(?:text|textbf|textit|textrm|mathrm|mathbf|mbox)\s*+"
SAME = {"varnothing": "emptyset", "empty": "emptyset", "leq": "le", "leqslant": "le", "geq": "ge"}
SAME |= {"geqslant": "ge", "neq": "ne", "lt": "<", "gt": ">"}
SAME_NAME = re.compile(r"\\(" + "|".join(SAME) + r")(?![A-Za-z])")
REPLACEMENTS = [
    (re.compile(r"[\n\xa0]"), " "),
    (re.compile(r"\\!\s*"), ""),
    (re.compile(r"(?<!\\)\\[()\[\]]"), " "),
    (re.compile(r"(?<!\\)\\[,;:> ]|~|\\q?quad(?![A-Za-z])"), " "),
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"\\\$|\$"), ""),
    (re.compile(r"\\(?:left|right|big|Big|bigg|Bigg|displaystyle)(?![A-Za-z])"), ""),
    (re.compile(r"\\[dtc]frac(?![A-Za-z])"), r"\\frac"),
    (
        re.compile(
            r"(?:(?<!\s)\s*+\^\s*+(?:\{\s*+\\circ\s*+\}|\\circ(?![A-Za-z]))|\\degree(?![A-Za-z]))"
            r"(?:\s*+(?:" + WORDS + r"\{[CF]\}|[CF](?![A-Za-z])))?"
        ),
        "",
    ),
    (re.compile(r"^\s*+" + WORDS + r"\{(?=[^{}\d]*+\d)([^{}]*+)\}\s*$"), r"\1"),
    (
        re.compile(r"(?:,|(?<!\s))\s*+" + WORDS + r"\{\s*+,?+\s*+(?:and|or)\s*+\}"),
        ",",
    ),
    (re.compile(r"(?<=\d)\s*+(?:" + WORDS + r"\{\s*+)?per ?cent(?![A-Za-z])\}?"), r"\%"),
    (re.compile(r"\\\{\s*+\\\}"), r"\\emptyset "),
]
# 0.1\overline{6}, 0.1\dot{6}, 0.1(6): digits that repeat, and those before them.
REPEATING = re.compile(
    r"(?<![\d.,])(\d*+)\.(\d*+)(?:\\(?:overline|bar|dot)\s*+\{(\d++)\}|\((\d++)\))(?![\d_.])"
)
SCALE = r"(?:thousand|million|billion|trillion|hundred|dozen)"
NO_UNIT = r"(?:" + SCALE + r"|sqrt|sinh|cosh|tanh|arc|alpha|beta|gamma|delta|theta|lambda|omega)"
UNIT_TEXT = re.compile(
    r"(?<=[\w)}\]])\s*(?:" + WORDS + r"\{(?!\s*" + SCALE + r")[^{}]*\}(?:\^\{?-?\d\}?)?\s*)+$"
)
# What stands in front of a unit: a number, or a product, power or root of numbers.
VALUE = (
    r"(?:[A-Za-z]\s*+=\s*+)?[+-]?(?=[\d.\\])(?:\d[\d.,]*+|\.\d++|\\frac\s?(?:\{[^{}]*+\}|\d){2}"
    r"|\\sqrt(?:\{[^{}]*+\}|\d)|\\(?:pi|times|cdot)(?![A-Za-z])|\^(?:\{[+-]?\d++\}|\d)|[/*+ -])++"
)
SHORT = (
    r"[ck]?m|mm|ft|in|kg|mg|lbs?|oz|mph|hrs?|min|sec|deg|pm|am|mL|ml|yd|sq|cu|Hz|USD|EUR|cup|day"
    r"|ton"
)
# A bare word after a plain number is a unit if it is too long for a product of variables.
UNIT_WORD = re.compile(
    rf"^({VALUE})\s*(?!{NO_UNIT})"
    rf"(?:[A-Za-z]{{4,}}|{SHORT})"
    r"(?:[\s/]+[A-Za-z.]+|\^\{?\d\}?)*$"
)
UNIT_IN_BRACKETS = re.compile(
    rf"^({VALUE})\(\s*+(?!{NO_UNIT})"
    rf"(?:(?:{SHORT})\s*+|(?=[^()]*?[A-Za-z]{{4}})[A-Za-z][A-Za-z ./-]*+)\)$"
)
# Words of other scripts, unless they are a scale (hundred, thousand, ten thousand, ...).
UNIT_ABROAD = re.compile(
    rf"^({VALUE})(?![十百千万萬亿億兆만억])[^\W\d_\x00-\x7f][^\W\d\x00-\x1f!-@\[-~]*+$"
)
UNITS = (UNIT_WORD, UNIT_IN_BRACKETS, UNIT_ABROAD)
SPACES = re.compile(r"(\\\\)\s*|(\\[A-Za-z]+)\s+(?=[A-Za-z])|(?<=\d)\s+(?=\d)|\s+")


def tidy(answer: str) -> str:
    """Return one spelling for answers that differ only in typography or unit.

    A text of more than 2,000 characters is no answer and stays as it is.
    """
    if len(answer) > MOST_CHARS:
        return answer.strip()
    text = SAME_NAME.sub(_same_name, write_latex(answer)).strip()
    for pattern, replacement in REPLACEMENTS:
        text = pattern.sub(replacement, text)
    text = _strip_end(text)
    text = UNIT_TEXT.sub("", text)
    for unit in UNITS:
        text = unit.sub(r"\1", text)
    text = REPEATING.sub(_fraction, text)
    return SPACES.sub(_space, _strip_end(text)).strip()


def _same_name(match: re.Match[str]) -> str:
    name = SAME[match[1]]
    return name if name in "<>" else f"\\{name}"


def _fraction(match: re.Match[str]) -> str:
    """Write a decimal whose last digits repeat as a fraction: 0.1\\overline{6} is 1/6."""
    before, repeated = match[1] + match[2], match[3] or match[4]
    nines = (10 ** len(repeated) - 1) * 10 ** len(match[2])
    value = Fraction(int(before + repeated) - int(before or "0"), nines)
    over, under = value.numerator, value.denominator
    return str(over) if under == 1 else rf"\frac{{{over}}}{{{under}}}"


def _strip_end(text: str) -> str:
    text = text.strip()
    return text if text.endswith("..") else text.rstrip(". ")


def _space(match: re.Match[str]) -> str:
    """Keep the space that LaTeX or a pair of digits needs, drop every other."""
    if match[1] or match[2]:
        return (match[1] or match[2]) + " "
    before = match.string[match.start() - 1 : match.start()]
    after = match.string[match.end() : match.end() + 1]
    return " " if before.isdigit() and after.isdigit() else ""
