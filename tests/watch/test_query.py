"""The language in which turns are searched: each word means one thing, or is named as wrong."""

from __future__ import annotations

import numpy as np
import pytest

from rolecall.watch.find import cut_snippet
from rolecall.watch.index import Columns, Names
from rolecall.watch.query import QueryError, read_query

AGENTS = ["solver", "judge", "solver", "judge"]
ERRORS = ["", "TimeoutError", "", "ValueError"]
NAN = float("nan")


def columns() -> Columns:
    """Four turns of two steps."""
    agent, error, task, source = Names(), Names(), Names(), Names()
    tasks = ["add-1", "add-2", "sub 1", "add-1"]
    values = {
        "agent": np.array([agent.number(one) for one in AGENTS], np.uint16),
        "error": np.array([error.number(one) for one in ERRORS], np.uint16),
        "task": np.array([task.number(one) for one in tasks], np.int32),
        "source": np.array([source.number("sums")] * 4, np.uint16),
        "finish": np.zeros(4, np.uint16),
        "valid": np.array([True, True, False, False]),
        "trained": np.array([True, False, True, True]),
        "chosen": np.ones(4, bool),
        "score": np.array([0.0, 0.7, 1.0, NAN], np.float32),
        "advantage": np.array([-0.5, 0.7, 0.2, NAN], np.float32),
    }
    named = {"agent": agent, "error": error, "task": task, "source": source, "finish": Names()}
    return Columns(np.array([9, 9, 8, 8], np.int32), values, named)


def matching(text: str) -> list[int]:
    return np.flatnonzero(read_query(text).mask(columns())).tolist()


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("", [0, 1, 2, 3]),
        ("agent:solver", [0, 2]),
        ("AGENT:solver", [0, 2]),
        ("-agent:solver", [1, 3]),
        ("agent:nobody", []),
        ("-agent:nobody", [0, 1, 2, 3]),
        ("task:add-*", [0, 1, 3]),
        ('task:"sub 1"', [2]),
        ("step:8", [2, 3]),
        ("step:9..", [0, 1]),
        ("step:..8", [2, 3]),
        ("step:1..8 agent:judge", [3]),
        ("step>8", [0, 1]),
        ("adv>0.2", [1]),
        ("adv>=0.2", [1, 2]),
        ("adv>0.7", []),  # the number that is recorded is not more than itself
        ("adv:0.7", [1]),
        ("advantage<0", [0]),
        ("adv:-1..0", [0]),
        ("score<1", [0, 1]),  # a turn without a score is in no range
        ("score=1", [2]),
        ("valid:no trained:yes", [2, 3]),
        ("error:yes", [1, 3]),
        ("error:no", [0, 2]),
        ("error:Timeout", [1]),
    ],
)
def test_a_query_selects_rows(text, rows):
    assert matching(text) == rows


@pytest.mark.parametrize(
    ("text", "words", "excluded"),
    [
        ("wait check", ["wait", "check"], []),
        ('"two words" one', ["two words", "one"], []),
        (r'"a \"quote\" in it"', ['a "quote" in it'], []),
        ("-wrong right", ["right"], ["wrong"]),
        ('-"not this"', [], ["not this"]),
        ("x=3 y<2 http://a.b", ["x=3", "y<2", "http://a.b"], []),
        ('"agent:solver"', ["agent:solver"], []),
        (r"\boxed{1}", [r"\boxed{1}"], []),
        ("- 5", ["-", "5"], []),
        ("\u202e \x1b[31m", ["\u202e", "\x1b[31m"], []),
    ],
)
def test_other_words_must_stand_in_the_text(text, words, excluded):
    query = read_query(text)
    assert (query.words, query.excluded, query.tests) == (words, excluded, [])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("agent:solver adv>high", "adv>high: 'high' is no number"),
        ("step:4..x", "step:4..x: 'x' is no number"),
        ("score<nan", "score<nan: 'nan' is no number"),
        ("valid:maybe", "valid:maybe: write valid:yes or valid:no"),
        ("agent>solver", "agent>solver: agent is no number; write agent:solver"),
        ("agent:", "agent:: a value is missing"),
        ("stepp:3", "stepp:3: there is no key 'stepp'; nearest: step"),
        ('he said "no', '"no: the quotation mark is not closed'),
    ],
)
def test_a_word_that_means_nothing_is_named(text, says):
    with pytest.raises(QueryError) as error:
        read_query(text)
    assert str(error.value).startswith(says)


def test_a_snippet_shows_where_the_first_word_stands():
    text = "x" * 500 + "The ANSWER is 42, the answer." + "y" * 500
    snippet, ranges = cut_snippet(text, ["answer", "42"])
    assert [snippet[begin:end] for begin, end in ranges] == ["ANSWER", "42", "answer"]
    assert len(snippet) < 300
    assert cut_snippet("", ["a"]) == ("", [])
