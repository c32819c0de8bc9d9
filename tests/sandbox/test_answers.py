"""Calls of a program's function: what they give, and what else a program may say."""

from __future__ import annotations

import asyncio

import pytest

from rolecall.sandbox.answers import Answer, answers
from rolecall.sandbox.base import Limits
from rolecall.sandbox.inside.calls import Strange, decode


def asked(sandbox, program, *calls, wall_s=10.0):
    found = answers(sandbox, program, entry_point="f", calls=calls, limits=Limits(wall_s=wall_s))
    return asyncio.run(found)


def test_each_call_gives_its_value_or_its_error(sandbox):
    program = "def f(a, b=2):\n    return (a / b, {a: [b]})"
    found = asked(sandbox, program, [1], [1, 0], [3, 4], ["x"])
    assert found == [
        Answer((0.5, {1: [2]})),
        Answer(missing="raises ZeroDivisionError"),
        Answer((0.75, {3: [4]})),
        Answer(missing="raises TypeError"),
    ]


@pytest.mark.parametrize(
    ("program", "why"),
    [
        ("def f(:", "does not load"),
        ("g = 1", "does not load"),
        ("import sys; sys.exit(0)", "does not load"),
        ("import os; os._exit(0)", "does not load"),
        ("def f(a):\n    while a: pass", "does not return"),
        ("def f(a):\n    import os; os._exit(0)", "does not return"),
        ("class Same:\n    __eq__ = lambda a, b: True\ndef f(a): return Same()", "raises Strange"),
        ("class Same(int):\n    __eq__ = lambda a, b: True\ndef f(a): raise SystemExit", "raises"),
    ],
)
def test_a_program_without_an_answer_says_why(sandbox, program, why):
    first, second = asked(sandbox, program, [1], [1], wall_s=2.0)
    assert why in first.missing
    assert why in second.missing
    assert first.value is second.value is None


@pytest.mark.parametrize(
    "line", ["[" * 9999, '{"value": {"set": [[]]}}', '{"value": {"no": 1}}', "null", "\\xff", "{}"]
)
def test_a_program_that_writes_answers_of_its_own_says_nothing_that_can_be_read(sandbox, line):
    """It finds the way out of its process, and speaks instead of the script around it."""
    program = (
        "import gc, io\n"
        "def f(a):\n"
        "    for out in gc.get_objects():\n"
        "        if isinstance(out, io.TextIOWrapper) and out.name not in (0, 1, 2):\n"
        "            if out.writable():\n"
        f"                out.write({line!r} + chr(10)); out.flush()\n"
        "    return a"
    )
    [found] = asked(sandbox, program, [1])
    assert found.missing.startswith("gives what cannot be read")


@pytest.mark.parametrize(
    ("value", "same"), [("set", set), ("frozenset", frozenset), ("dict", dict.fromkeys)]
)
def test_values_that_all_have_one_hash_are_not_collected(value, same):
    """Each would be compared with all before it. A few do no harm, and are right."""
    alike = [number * (2**61 - 1) for number in range(40_000)]
    listed = alike if value != "dict" else [[number, None] for number in alike]
    with pytest.raises(Strange, match="have the same hash"):
        decode({value: listed})
    assert decode({value: listed[:100]}) == same(alike[:100])
    assert decode({value: [[n, None] for n in range(9)] if value == "dict" else [*range(9)]}) == (
        same(range(9))
    )


def test_an_equal_of_everything_crosses_as_a_plain_number(sandbox):
    program = "class Same(int):\n    __eq__ = lambda a, b: True\ndef f(a): return Same(7)"
    [found] = asked(sandbox, program, [1])
    assert type(found.value) is int
    assert found.value == 7


def test_arguments_that_are_not_plain_are_the_askers_error(sandbox):
    with pytest.raises(Strange, match="ellipsis"):
        asked(sandbox, "def f(a): return a", [...])
