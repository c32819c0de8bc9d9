"""The child process of the maths judge, which compares answers that plain rules cannot.

    {"given": "x+1", "truth": "1+x"} -> {"verdict": "equal", "worn": false}
    {"given": null, "truth": "1+x"}  -> {"verdict": "readable", "worn": false}

Verdicts: equal, different, readable, unreadable (the truth) and memory; one unasked "readable"
says that the libraries are loaded. The parent enforces the wall time; the limits here hold even
when the parent is gone.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import resource
import sys
from fractions import Fraction
from pathlib import Path
from typing import IO, TYPE_CHECKING

from rolecall.runtime.die_with_parent import end_with_parent

if TYPE_CHECKING:
    from sympy import Expr


DIGITS = 200  # after the point, to which formulas are evaluated
RELATIVE_DIGITS = 30
MOST_BITS = 100_000  # of a rational number that is compared exactly
MOST_FACTORIAL = 5_000
# Not before a percent sign, where math-verify reads plain numbers alone.
DECIMAL = re.compile(
    r"(?<![\d.,])(?:\d{1,3}(?:,\d{3})++|\d*+)\.\d++(?![\d.]|\s*+\\?%)|(?<=,)\d*+\.\d++(?![\d.])"
)
UNRELATED = "987654321"  # an answer that no reference should have trouble differing from


def compare(given: str | None, truth: str) -> str:
    """Return the verdict on one pair; without `given`, on the reference alone."""
    from math_verify import verify

    gold = _parse(truth)
    if not gold:
        return "unreadable"
    if given is None:
        verify(gold, _parse(UNRELATED), timeout_seconds=None)
        return "readable" if verify(gold, gold, timeout_seconds=None) else "unreadable"
    answer = _parse(given)
    if _equal(gold, answer):
        return "equal"
    return "equal" if _equal_as_complex(gold, answer) else "different"


def _equal_as_complex(gold: list[Expr], answer: list[Expr]) -> bool:
    """Compare with the variable `i` as the imaginary unit; math-verify reads `I` as that."""
    from sympy import Basic, I

    def replace(formula: Expr) -> Expr:
        if not isinstance(formula, Basic):
            return formula
        return formula.subs({symbol: I for symbol in formula.free_symbols if str(symbol) == "i"})

    if any(isinstance(formula, Basic) and formula.has(I) for formula in (*gold, *answer)):
        return False
    units = [[replace(formula) for formula in parsed] for parsed in (gold, answer)]
    return units != [gold, answer] and _equal(*units)


def _equal(gold: list[Expr], answer: list[Expr]) -> bool:
    """Compare as math-verify does, but exactly: for it, numbers that are near are equal."""
    exact = [_rational(parsed[0]) if parsed else None for parsed in (gold, answer)]
    if None not in exact:
        return exact[0] == exact[1]
    return (
        _verify(gold, answer)
        and _verify(gold, answer, numeric_precision=DIGITS)
        and not _differ_relatively(gold, answer)
    )


def _verify(gold: list[Expr], answer: list[Expr], **options: int) -> bool:
    """Ask math-verify both ways: it is not symmetric about assignments; equality is."""
    from math_verify import verify

    pairs = ((gold, answer), (answer, gold))
    return any(verify(*pair, timeout_seconds=None, **options) for pair in pairs)


def _rational(formula: Expr) -> Fraction | None:
    """Return the value of sums, products, powers and factorials of rational numbers, else None.

    What has too many digits is None too, and so is a percentage: 50% equals 50 as well as 0.5.
    """
    from sympy import Add, Mul, Pow, Rational, factorial

    if isinstance(formula, Rational):
        return Fraction(formula.p, formula.q) if formula.q else None
    if not isinstance(formula, (Add, Mul, Pow, factorial)):
        return None
    values = []
    for argument in formula.args:
        value = _rational(argument)
        if value is None or _num_bits(value) > MOST_BITS:
            return None
        values.append(value)
    if isinstance(formula, Add):
        return sum(values, Fraction(0))
    if isinstance(formula, Mul):
        return math.prod(values, start=Fraction(1))
    if isinstance(formula, factorial):
        [number] = values
        is_small = number.denominator == 1 and 0 <= number <= MOST_FACTORIAL
        return Fraction(math.factorial(int(number))) if is_small else None
    base, exponent = values
    if exponent.denominator != 1 or (not base and exponent < 0):
        return None
    return base ** int(exponent) if abs(exponent) * _num_bits(base) <= MOST_BITS else None


def _num_bits(value: Fraction) -> int:
    return value.numerator.bit_length() + value.denominator.bit_length()


def _differ_relatively(gold: list[Expr], answer: list[Expr]) -> bool:
    """Return whether two numbers differ by a factor, however small both are."""
    from sympy import Expr, UnevaluatedExpr

    both = [parsed[0] for parsed in (gold, answer) if parsed]
    if len(both) < 2 or any(
        not isinstance(one, Expr) or one.free_symbols or one.has(UnevaluatedExpr) for one in both
    ):
        return False
    if not all(one.is_finite and one.is_nonzero for one in both):
        return False
    factor = (both[0] / both[1]).evalf(RELATIVE_DIGITS)
    return bool(abs(factor - 1) > 10 ** -(RELATIVE_DIGITS - 5))


def _parse(answer: str) -> list[Expr]:
    """Read LaTeX only: math-verify's other reader hands text to a parser that runs Python.

    Decimals are read as fractions, because math-verify rounds them.
    """
    from math_verify import LatexExtractionConfig, parse

    return parse(
        f"${DECIMAL.sub(_fraction, answer)}$",
        extraction_config=[LatexExtractionConfig()],
        fallback_mode="no_fallback",
        parsing_timeout=None,
    )


def _fraction(match: re.Match[str]) -> str:
    value = Fraction(match[0].replace(",", ""))
    return rf"\frac{{{value.numerator}}}{{{value.denominator}}}"


def serve(requests: IO[str], replies: IO[str], *, time_s: float, memory_bytes: int) -> None:
    """Answer until the requests end; each request gets its own processor time and memory."""
    for line in requests:
        request = json.loads(line)
        before = _limit(time_s=time_s, memory_bytes=memory_bytes)
        try:
            verdict = compare(request["given"], request["truth"])
        except MemoryError:
            verdict = "memory"
        # sympy and math-verify swallow MemoryError. A result that does not fit fails at twice
        # the size of its largest intermediate, so a large peak means that the limit was met.
        swallowed = _status_bytes("VmPeak") - before > memory_bytes / 2
        if swallowed and verdict in ("different", "unreadable"):
            verdict = "memory"
        replies.write(json.dumps({"verdict": verdict, "worn": swallowed}) + "\n")
        replies.flush()


def _limit(*, time_s: float, memory_bytes: int) -> int:
    """Set the limits from what is used now; returns the address space in use, in bytes."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    seconds = math.ceil(usage.ru_utime + usage.ru_stime + time_s) + 1
    used = _status_bytes("VmSize")
    for kind, limit in ((resource.RLIMIT_CPU, seconds), (resource.RLIMIT_AS, used + memory_bytes)):
        resource.setrlimit(kind, (limit, resource.getrlimit(kind)[1]))
    return used


def _status_bytes(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {field}")


def main() -> None:
    time_s, memory_bytes = float(sys.argv[1]), int(sys.argv[2])
    end_with_parent()
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print must not mix with the replies
    logging.disable(logging.CRITICAL)
    assert compare("1+1", "2") == "equal", "math-verify does not know that 1 + 1 = 2"
    replies.write(json.dumps({"verdict": "readable", "worn": False}) + "\n")
    replies.flush()
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)
    os.dup2(quiet, 2)
    serve(sys.stdin, replies, time_s=time_s, memory_bytes=memory_bytes)


if __name__ == "__main__":
    main()
