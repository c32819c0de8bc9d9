"""Reads what people write to find turns: `agent:solver adv>0.5 step:40..60 valid:no "boxed"`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from rolecall.core.errors import nearest
from rolecall.watch.index import Array, Columns
from rolecall.watch.refusals import Unanswerable

NAMES = ("agent", "task", "source", "finish")
FLAGS = ("valid", "trained", "chosen")
NUMBERS = {"adv": "advantage", "advantage": "advantage", "score": "score", "step": "step"}
KEYS = (*NAMES, *FLAGS, *NUMBERS, "error")
RELATIONS: dict[str, Callable[[Any, float], Any]] = {
    ">=": operator.ge, "<=": operator.le, ">": operator.gt, "<": operator.lt,
    ":": operator.eq, "=": operator.eq,
}  # fmt: skip
YES, NO = ("yes", "true", "1"), ("no", "false", "0")
TOKEN = re.compile(
    r'\s*(-?(?:[A-Za-z_]+(?:>=|<=|[:=<>]))?(?:"(?:[^"\\]|\\.)*"|[^\s"]+)|-?[^\s"]*")'
)
TERM = re.compile(r"(-?)([A-Za-z_]+)(>=|<=|[:=<>])(.*)", re.DOTALL)
Test = Callable[[Columns], Array]
EXAMPLE = 'agent:solver adv>0.5 step:40..60 valid:no "exact words"'


class QueryError(Unanswerable):
    """A word of a query that means nothing."""


@dataclass(slots=True)
class Query:
    """Conditions on columns, and words that must stand in the text; all must hold."""

    tests: list[Test] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    excluded: list[str] = field(default_factory=list)  # words that must not stand in the text

    def mask(self, columns: Columns) -> Array:
        """Return which rows meet all conditions on columns."""
        rows = np.ones(len(columns), bool)
        for test in self.tests:
            rows &= test(columns)
        return rows

    @property
    def has_words(self) -> bool:
        return bool(self.words or self.excluded)


def read_query(text: str) -> Query:
    """Return the query of a text; raises QueryError naming the word that cannot be read."""
    query = Query()
    position = 0
    while text[position:].strip():
        match = TOKEN.match(text, position)
        if match is None or match[1].count('"') == 1:
            rest = text[position:].strip()
            raise QueryError(f'{rest}: the quotation mark is not closed; write "exact words"')
        _add(query, match[1])
        position = match.end()
    return query


def _add(query: Query, token: str) -> None:
    term = TERM.fullmatch(token)
    if term is None or not _is_key(term[2], token):
        is_excluded = token.startswith("-") and len(token) > 1
        word = _unquote(token[1:] if is_excluded else token)
        if word:
            (query.excluded if is_excluded else query.words).append(word)
        return
    negated, key, relation, value = term.groups()
    test = _read_test(key.lower(), relation, _unquote(value), token)
    query.tests.append(_negate(test) if negated else test)


def _is_key(key: str, token: str) -> bool:
    """Return whether a word is a key; text such as `a=b` or `x<3` is a word to find."""
    if key.lower() in KEYS:
        return True
    if ":" in token and "://" not in token and token.index(":") == len(key) + token.startswith("-"):
        raise QueryError(
            f"{token}: there is no key {key!r}; {nearest(key.lower(), list(KEYS))}. To find these "
            f'words write "{token}"'
        )
    return False


def _read_test(key: str, relation: str, value: str, token: str) -> Test:
    if not value:
        raise QueryError(f"{token}: a value is missing; write for example {EXAMPLE}")
    if key in NUMBERS:
        return _test_number(NUMBERS[key], relation, value, token)
    if relation not in (":", "="):
        raise QueryError(f"{token}: {key} is no number; write {key}:{value}")
    if key in FLAGS:
        return _test_flag(key, value, token)
    if key == "error" and value.lower() in (*YES, *NO):
        return _test_error(value.lower() in YES)
    return _test_name(key, value)


def _test_number(column: str, relation: str, value: str, token: str) -> Test:
    low, dots, high = value.partition("..")
    if dots and relation in (":", "="):
        least = _number(low, token) if low else -np.inf
        most = _number(high, token) if high else np.inf

        def test_range(columns: Columns) -> Array:
            values = _column(columns, column)
            return np.asarray((values >= least) & (values <= most))

        return test_range
    number, compare = _number(value, token), RELATIONS[relation]
    return lambda columns: np.asarray(compare(_column(columns, column), number))


def _number(text: str, token: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = np.nan
    if np.isnan(number):
        raise QueryError(
            f"{token}: {text!r} is no number; write for example adv>0.5, score<1 or step:40..60"
        )
    return number


def _test_flag(key: str, value: str, token: str) -> Test:
    if value.lower() not in (*YES, *NO):
        raise QueryError(f"{token}: write {key}:yes or {key}:no")
    is_wanted = value.lower() in YES
    return lambda columns: columns.values[key] == is_wanted


def _test_error(is_wanted: bool) -> Test:
    return lambda columns: (columns.values["error"] > 0) == is_wanted


def _test_name(key: str, value: str) -> Test:
    """Return the test of a name: exact, or a pattern with `*`; kinds of errors by their begin."""
    pattern = f"{value}*" if key == "error" else value

    def test(columns: Columns) -> Array:
        texts = columns.names[key].texts
        if "*" in pattern or "?" in pattern:
            numbers = [n for n, text in enumerate(texts) if n and fnmatchcase(text, pattern)]
        else:
            numbers = [n for n, text in enumerate(texts) if text == pattern]
        values = columns.values[key]
        if len(numbers) == 1:
            return np.asarray(values == numbers[0])
        return np.isin(values, np.array(numbers, values.dtype))

    return test


def _negate(test: Test) -> Test:
    return lambda columns: ~test(columns)


def _column(columns: Columns, name: str) -> Array:
    return columns.step if name == "step" else columns.values[name]


def _unquote(text: str) -> str:
    if len(text) >= 2 and text.startswith('"') and text.endswith('"'):
        return re.sub(r"\\(.)", r"\1", text[1:-1])
    return text
