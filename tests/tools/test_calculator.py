"""Right answers, and nothing but arithmetic."""

from __future__ import annotations

import asyncio
import sys
import time

import pytest

from rolecall.core.interfaces.tool import ToolError
from rolecall.tools.calculator import _lcm, calculator


def said(expression: str) -> str:
    return asyncio.run(calculator.call(expression=expression))


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("sqrt(16)", "4"),
        ("sqrt(2)", "1.41421356237"),
        ("sqrt(9/4)", "1.5"),
        ("16^0.5", "4"),
        ("0.1 + 0.2", "0.3"),
        ("1/3", "0.333333333333"),
        ("7/2", "3.5"),
        ("6/3", "2"),
        ("7//2", "3"),
        ("-7 % 3", "2"),
        ("2^3*4", "32"),
        ("2^-1", "0.5"),
        ("-2^2", "-4"),
        ("2^100", str(2**100)),
        (
            "12345678901234567890 * 98765432109876543210",
            str(12345678901234567890 * 98765432109876543210),
        ),
        ("(1 + 2) \u00d7 3 \u00f7 9 \u2212 1", "0"),
        ("max(3, 1+1, abs(-7))", "7"),
        ("round(2.567, 2)", "2.57"),
        ("floor(-1.5) + ceil(1.2)", "0"),
        ("factorial(20)", "2432902008176640000"),
        ("comb(5, 2) + gcd(12, 18)", "16"),
        ("log(8, 2)", "3"),
        ("ln(e)", "1"),
        ("cos(0) + sin(pi)", "1"),
        ("1e3 + .5", "1000.5"),
        ("1_000 + 1", "1001"),
        ("round(1234.5, -2) + lcm(4, 6, 10)", "1260"),
        ("round(1/3, 1000)", "0.333333333333"),
    ],
)
def test_values_are_right(expression, value):
    assert said(expression) == value


@pytest.mark.parametrize(
    ("expression", "told"),
    [
        ("", "not an arithmetic expression"),
        ("2 +", "not an arithmetic expression"),
        ("1/0", "division by zero"),
        ("0^-1", "division by zero"),
        ("x + 1", "not arithmetic: x"),
        ("__import__('os').system('id')", "not arithmetic"),
        ("(1).__class__", "not arithmetic"),
        ("[1, 2]", "not arithmetic"),
        ("'a' * 9", "not arithmetic"),
        ("True + 1", "not arithmetic"),
        ("sqrt(x=4)", "not arithmetic"),
        ("0x10", "must be decimal"),
        ("1j * 1j", "not arithmetic"),
        ("sqrt(-1)", "not real"),
        ("(-8)^(1/3)", "not a real number"),
        ("sqrt()", "argument"),
        ("factorial(2.5)", "whole number"),
        ("factorial(5000)", "at most 1000"),
        ("exp(1000)", "range"),
        ("9^9^9^9", "too large"),
        ("(10^6000)^6", "too large"),
        ("10^2000", "more than a thousand digits"),
        ("1e999999", "must be decimal"),
        ("round(1.5, 100000)", "round takes at most 1000 digits"),
        ("round(1.5, -100000)", "round takes at most 1000 digits"),
        ("round(1.5, 1e300)", "round takes at most 1000 digits"),
        ("round(1.5, exp(1000))", "range"),
        (f"lcm({','.join(f'factorial({n})' for n in range(980, 1000))},1/2)", "whole number"),
        (f"lcm({','.join(f'1e{n}+{n}' for n in range(900, 990))})", "too large"),
        ("(10^2000 + 1)/3", "not a finite number"),
        ("1" * 900 + "e9999", "must be decimal"),
        ("1" * 1001, "1000 is the most"),
        ("(" * 400 + "1" + ")" * 400, "not an arithmetic expression"),
        ("-" * 990 + "1", "not an arithmetic expression"),
    ],
)
def test_what_is_no_arithmetic_is_refused_at_once(expression, told):
    seconds = []
    for _ in range(3):  # one may meet the garbage collector, in a process with much to sweep
        started = time.process_time()
        with pytest.raises(ToolError, match=told.replace("(", "\\(")):
            said(expression)
        seconds.append(time.process_time() - started)
    assert min(seconds) < 0.5


def test_an_expression_is_computed_beside_the_event_loop():
    """Other episodes go on meanwhile: the loop has come round before the value is there."""
    passed = []

    async def main() -> tuple[str, bool]:
        asyncio.get_running_loop().call_soon(passed.append, "the loop has turned")
        return await calculator.call(expression="6*7"), bool(passed)

    assert asyncio.run(main()) == ("42", True)


def test_a_least_common_multiple_is_refused_before_it_is_complete():
    """What comes after the number that made it too large is not looked at."""
    with pytest.raises(ToolError, match="too large"):
        _lcm(1, 2**19_000 - 1, 2**19_001 - 1, "not a number")


@pytest.mark.parametrize("arguments", [{}, {"expression": 3}, {"expression": "1", "more": 2}])
def test_wrong_arguments_are_named(arguments):
    with pytest.raises(ToolError, match=r"argument '(expression|more)'"):
        asyncio.run(calculator.call(**arguments))


def test_how_deep_operations_may_be_does_not_depend_on_pythons_limit():
    """Some libraries raise it for the whole process."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(10_000)
    try:
        with pytest.raises(ToolError, match="not an arithmetic expression"):
            said("-" * 990 + "1")
        assert said("+".join(["1"] * 390)) == "390"
    finally:
        sys.setrecursionlimit(before)
