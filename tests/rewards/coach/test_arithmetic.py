"""Arithmetic steps found in texts, and whether they are right."""

import time

import pytest

from rolecall.rewards.coach.arithmetic import steps

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("3*4=12", [True]),
        ("12 + 5 = 17", [True]),
        ("12 + 5 = 18", [False]),
        ("So the total is 12 + 5 = 17.", [True]),
        ("a total of $1,200 + $300 = $1,500", [True]),
        ("2 + 3 * 4 = 14", [True]),
        ("(2 + 3) * 4 = 14", [False]),
        ("1/3 + 1/6 = 1/2", [True]),
        ("0.1 + 0.2 = 0.3", [True]),
        ("10 / 3 = 3.33", [True]),
        ("10 / 3 = 3.34", [False]),
        ("7 / 2 = 4", [False]),
        ("3 * 4 = 12 = 24 / 2", [True, True]),
        ("3 * 4 = 12 (as before)", [True]),
        ("5 - 8 = -3", [True]),
        ("1 / 0 = 0", [False]),
        (r"\(\frac{1}{2} \times 6 = 3\)", [True]),
        ("6 \u00d7 7 = 42, 42 \u00f7 7 = 6", [True, True]),
        ("3 * 4 = <<3*4=12>>12", [True]),
        ("2 + 2 = 4\n4 + 4 = 9", [True, False]),
    ],
)
def test_each_equality_of_plain_numbers_is_a_step(text, right):
    assert [verdict for _, verdict in steps(text)] == right


@pytest.mark.parametrize(
    "text",
    [
        "x = 5",
        "2x = 4 + 3",
        "3x*4 = 12",
        "x - 4*2 = 12",
        "x + 4*2 = 12",
        "4*3 = 6x",
        "2^3 = 8",
        "50% * 20 = 10",
        "3*4 == 13",
        "2024-01-05",
        "5 = 5",
        "= = =",
        "3 * 4 = x",
        "",
    ],
)
def test_what_holds_more_than_plain_numbers_is_no_step(text):
    assert steps(text) == []


@pytest.mark.parametrize("text", ["9*" * 200_000 + "=1", "((((" * 50_000, "1=1+" * 50_000])
def test_long_texts_are_read_in_moderate_time(text):
    began = time.monotonic()
    steps(text)
    assert time.monotonic() - began < 5.0
