"""Computes arithmetic expressions in exact fractions, and can run nothing else.

The text is read by Python's grammar and only known nodes are computed; nothing is evaluated.
"""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from rolecall.core.interfaces.tool import ToolError
from rolecall.tools.functions import tool

Number = Fraction | float
MAX_DEPTH = 400  # operations inside one another
MAX_CHARS = 1_000
MAX_BITS = 20_000  # of a number on the way; the result of 2**20000 is the largest power of two
MAX_RESULT_BITS = 3_320  # of a whole result: a thousand digits
MAX_ROUND_DIGITS = 1_000  # `round` computes 10 to that power in one call, which nothing can stop
# Possessive quantifiers: what one part has taken it does not give back, so the time is linear.
DECIMAL = re.compile(r"[\d_]*+\.?+\d*+(?:[eE][+-]?\d{1,3})?")
CONSTANTS: dict[str, Number] = {"pi": math.pi, "e": math.e, "tau": math.tau}
SIGNS = {"^": "**", "\u00d7": "*", "\u00b7": "*", "\u00f7": "/", "\u2212": "-", "\u03c0": "pi"}
BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
}  # fmt: skip


@tool
def calculator(expression: str) -> str:  # a plain function: it runs in a thread
    """Value of an arithmetic expression: + - * / // % ^ ( ), sqrt, abs, min, max, log, sin, pi."""
    return show_number(evaluate(expression))


def evaluate(expression: str) -> Number:
    """Evaluate exactly: `0.1 + 0.2` is 3/10, `sqrt(16)` is 4, `2^-1` is 1/2.

    Raises ToolError for what is no arithmetic and for numbers beyond 20,000 bits.
    """
    if len(expression) > MAX_CHARS:
        raise ToolError(f"the expression has {len(expression)} characters; {MAX_CHARS} is the most")
    text = expression.strip()
    for sign, ours in SIGNS.items():
        text = text.replace(sign, ours)
    try:
        tree = ast.parse(text, mode="eval")
        _check_depth(tree)
        return _value(tree.body, text)
    except (SyntaxError, MemoryError, RecursionError) as error:
        raise ToolError(f"not an arithmetic expression: {expression.strip()!r}") from error
    except ZeroDivisionError as error:
        raise ToolError("division by zero") from error
    except (OverflowError, TypeError, ValueError) as error:
        raise ToolError(str(error)) from error


def _check_depth(tree: ast.AST) -> None:
    """Check a tree's depth; raises RecursionError.

    Python's own limit is moved by some libraries.
    """
    level, depth = [tree], 0
    while level:
        level, depth = [child for node in level for child in ast.iter_child_nodes(node)], depth + 1
        if depth > MAX_DEPTH:
            raise RecursionError(f"more than {MAX_DEPTH} operations inside one another")


def show_number(value: Number) -> str:
    """Return 4 for 4, 0.75 for 3/4, 0.333333333333 for 1/3."""
    if isinstance(value, Fraction):
        if value.denominator == 1:
            if value.numerator.bit_length() > MAX_RESULT_BITS:
                raise ToolError("the result has more than a thousand digits")
            return str(value.numerator)
        try:
            value = float(value)
        except OverflowError as error:
            raise ToolError("the result is not a finite number") from error
    if not math.isfinite(value):
        raise ToolError("the result is not a finite number")
    return f"{value:.12g}"


def _value(node: ast.expr, text: str) -> Number:
    match node:
        case ast.Constant(value=int() | float()) if not isinstance(node.value, bool):
            source = ast.get_source_segment(text, node) or ""
            if not DECIMAL.fullmatch(source):
                raise ToolError(f"a number must be decimal: {source}")
            return _bounded(Fraction(source.replace("_", "")))  # 0.1 is one tenth
        case ast.Name(id=name) if name in CONSTANTS:
            return CONSTANTS[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, text)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value(operand, text)
        case ast.BinOp(op=ast.Pow(), left=left, right=right):
            return _power(_value(left, text), _value(right, text))
        case ast.BinOp(op=op, left=left, right=right) if type(op) in BINARY:
            return _bounded(BINARY[type(op)](_value(left, text), _value(right, text)))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in FUNCTIONS:
            return _bounded(FUNCTIONS[name](*(_value(argument, text) for argument in args)))
    source = ast.get_source_segment(text, node) or text
    raise ToolError(f"not arithmetic: {source}")


def _bounded(value: Number) -> Number:
    if isinstance(value, complex):
        raise ToolError("the result is not a real number")
    bits = 0
    if isinstance(value, Fraction):
        bits = max(value.numerator.bit_length(), value.denominator.bit_length())
    if bits > MAX_BITS:
        raise ToolError("the numbers become too large")
    return value


def _power(base: Number, exponent: Number) -> Number:
    if isinstance(base, Fraction) and isinstance(exponent, Fraction) and exponent.denominator == 1:
        size = max(base.numerator.bit_length(), base.denominator.bit_length())
        if size * abs(exponent.numerator) > MAX_BITS and base not in (-1, 0, 1):
            raise ToolError("the numbers become too large")
        return base**exponent.numerator
    if exponent == Fraction(1, 2):
        return _sqrt(base)
    return _bounded(float(base) ** float(exponent))


def _sqrt(value: Number) -> Number:
    if value < 0:
        raise ToolError("the square root of a negative number is not real")
    if isinstance(value, Fraction):
        roots = math.isqrt(value.numerator), math.isqrt(value.denominator)
        if roots[0] ** 2 == value.numerator and roots[1] ** 2 == value.denominator:
            return Fraction(*roots)
    return math.sqrt(value)


def _real(function: Callable[..., float]) -> Callable[..., Number]:
    return lambda *given: function(*(float(value) for value in given))


def _whole(function: Callable[..., int], most: int | None = None) -> Callable[..., Number]:
    def call(*given: Number) -> Number:
        if any(value != int(value) for value in given):
            raise ToolError("a whole number is needed")
        if most is not None and max(given) > most:
            raise ToolError(f"a number of at most {most} is needed")
        return Fraction(function(*(int(value) for value in given)))

    return call


def _lcm(*given: int) -> int:
    """Return the least common multiple, number by number, so that what becomes too large is seen
    while it grows.
    """
    multiple = 1
    for value in given:
        multiple = math.lcm(multiple, value)
        _bounded(Fraction(multiple))
    return multiple


def _rounded(value: Number, digits: Number = Fraction(0)) -> Number:
    if not -MAX_ROUND_DIGITS <= digits <= MAX_ROUND_DIGITS:
        raise ToolError(f"round takes at most {MAX_ROUND_DIGITS} digits")
    return Fraction(round(Fraction(value), int(digits)))


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "sqrt": _sqrt, "abs": abs, "min": min, "max": max, "round": _rounded, "pow": _power,
    "floor": lambda x: Fraction(math.floor(x)), "ceil": lambda x: Fraction(math.ceil(x)),
    "exp": _real(math.exp), "log": _real(math.log), "ln": _real(math.log),
    "log10": _real(math.log10), "log2": _real(math.log2),
    "sin": _real(math.sin), "cos": _real(math.cos), "tan": _real(math.tan),
    "asin": _real(math.asin), "acos": _real(math.acos), "atan": _real(math.atan),
    "factorial": _whole(math.factorial, 1000), "comb": _whole(math.comb, 2000),
    "perm": _whole(math.perm, 2000), "gcd": _whole(math.gcd), "lcm": _whole(_lcm),
}  # fmt: skip
