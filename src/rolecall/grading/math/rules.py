"""Compares two maths answers by plain rules; None means that only algebra can tell.

Numbers are compared exactly: 1/3 is not 0.3333. Nothing here evaluates text.
"""

from __future__ import annotations

import re

from rolecall.grading.math.answers import references
from rolecall.grading.math.tidy import tidy
from rolecall.grading.math.values import Formula, Number, Numeral, Series, Text, Value, read

MAX_UNORDERED = 30  # matching two unordered series costs the square of their length

ASSIGNMENT = re.compile(r"([A-Za-z](?:_\{?\w+\}?|\([A-Za-z]\))?)(?:=|\\in(?![A-Za-z]) ?)([^=<>]+)")


def quick_equal(given: str, truth: object) -> bool | None:
    """Equal to any reference of `truth`: True or False by plain rules, None if undecided."""
    verdicts = [quick_pair(*align(given, reference)) for reference in references(truth)]
    if True in verdicts:
        return True
    return None if None in verdicts else False


def align(given: str, reference: str) -> tuple[str, str]:
    """Both answers tidy, and without an `x=` that only one of them has or that both share.

    align("x = 5", "5") -> ("5", "5"); align("x=5", "y=5") stays as it is.
    """
    left, right = tidy(given), tidy(reference)
    named_left, named_right = ASSIGNMENT.fullmatch(left), ASSIGNMENT.fullmatch(right)
    if named_left and named_right and named_left[1] == named_right[1]:
        return named_left[2], named_right[2]
    if named_left and not named_right and "=" not in right:
        return named_left[2], right
    if named_right and not named_left and "=" not in left:
        return left, named_right[2]
    return left, right


def quick_pair(given: str, reference: str) -> bool | None:
    """Apply the rules to two aligned answers."""
    if not given or not reference:
        return False
    return True if given == reference else _same(read(given), read(reference))


def _same(a: Value, b: Value) -> bool | None:
    if a == b:
        return True
    if isinstance(a, Text) or isinstance(b, Text):
        return _same_text(a, b)
    if isinstance(a, Numeral) or isinstance(b, Numeral):
        return False
    if isinstance(a, Formula) or isinstance(b, Formula):
        return None
    if isinstance(a, Number) and isinstance(b, Number):
        if a.percent == b.percent:
            return a.value == b.value
        share, plain = (a.value, b.value) if a.percent else (b.value, a.value)
        return plain in (share, share / 100)  # 50% is written as 50 and as 0.5
    if isinstance(a, Series) and isinstance(b, Series):
        return _same_series(a, b)
    return False


def _same_text(a: Value, b: Value) -> bool | None:
    if isinstance(a, Text) and isinstance(b, Text):
        if a.words == b.words:
            return True
        product = not a.marked and not b.marked and min(len(a.words), len(b.words)) > 1
        return None if product else False  # abc and cba may be one product
    text, other = (a, b) if isinstance(a, Text) else (b, a)
    assert isinstance(text, Text)
    return None if isinstance(other, Formula) and not text.marked else False


def _same_series(a: Series, b: Series) -> bool | None:
    unordered = [series.brackets in ("{}", "") for series in (a, b)]
    if all(unordered):
        return _same_unordered(a, b)
    if any(unordered):  # 1,2 against (1,2): one side may leave the brackets out, not the order
        comparable = bool({a.brackets, b.brackets} & {"()", "[]"})
    else:
        comparable = a.brackets == b.brackets
    if not comparable or len(a.items) != len(b.items):
        return False
    verdicts = [_same(x, y) for x, y in zip(a.items, b.items, strict=True)]
    if False in verdicts:
        return False
    return None if None in verdicts else True


def _same_unordered(a: Series, b: Series) -> bool | None:
    formulas = any(isinstance(item, Formula) for item in a.items + b.items)
    if len(a.items) != len(b.items):
        return None if formulas else False  # 1\pm2 stands for two elements
    if len(a.items) > MAX_UNORDERED:
        return None
    remaining, undecided = list(b.items), False
    for item in a.items:
        verdicts = [_same(item, other) for other in remaining]
        if True in verdicts:
            remaining.pop(verdicts.index(True))
        elif None in verdicts:
            undecided = True
        else:
            return False
    return None if undecided else True
