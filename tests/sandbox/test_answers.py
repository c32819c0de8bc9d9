"""Calls of a program's function: what they give, and what else a program may say."""

from __future__ import annotations

import asyncio
import time

import pytest

from rolecall.sandbox.answers import Answer, answers
from rolecall.sandbox.base import Limits
from rolecall.sandbox.inside.calls import UnserialisableError, decode, encode

pytestmark = pytest.mark.slow


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
        (
            "class Same:\n    __eq__ = lambda a, b: True\ndef f(a): return Same()",
            "raises UnserialisableError",
        ),
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
    with pytest.raises(UnserialisableError, match="have the same hash"):
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
    with pytest.raises(UnserialisableError, match="ellipsis"):
        asked(sandbox, "def f(a): return a", [...])


SPAN = 2**61 - 1  # numbers that are so far apart have one hash


def nested_sets(depth: int, *, wide: int) -> dict:
    """Sets of one hash, in which are sets of one hash, and so on: each pair is compared deeply."""

    def level(depth: int, first: int) -> dict:
        if depth == 0:
            return {"frozenset": [first * SPAN + k for k in range(wide)]}
        return {"frozenset": [level(depth - 1, first * wide + k) for k in range(wide)]}

    return {"set": [level(depth, first) for first in range(wide)]}


def wide_tuples(number: int, *, size: int) -> dict:
    """Tuples of one hash that differ at their end."""
    return {"set": [{"tuple": [0] * size + [k * SPAN]} for k in range(number)]}


@pytest.mark.parametrize(
    "value",
    [nested_sets(1, wide=90), nested_sets(2, wide=30), nested_sets(3, wide=12),
     wide_tuples(100, size=20_000)],
)  # fmt: skip
def test_no_answer_holds_the_host_while_it_is_built(value):
    """Its interpreter runs no other thread meanwhile, and no limit of the sandbox holds there."""
    began = time.process_time()
    with pytest.raises(UnserialisableError, match="same hash"):
        decode(value)
    assert time.process_time() - began < 2.0


def test_sets_and_tuples_that_tests_have_are_right():
    grid = {(x, y, z) for x in range(-5, 5) for y in range(-5, 5) for z in range(-5, 5)}
    for value in (
        grid,  # -1 and -2 have one hash
        {frozenset({k, k + 1}) for k in range(-300, 300)},
        {frozenset({frozenset({a, b}), frozenset({b})}) for a in range(9) for b in range(9)},
        {frozenset(range(k)): (k, {k}) for k in range(200)},
        {(): [set(), frozenset(), {}]},
    ):
        assert decode(encode(value)) == value
