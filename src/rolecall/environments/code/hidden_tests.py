"""Runs a program on input/output pairs, and says which of them it gets wrong and how.

A pair is `call == value` for a function, such as `add(1, 2) == 3`, and `input == output` for a
program that reads and prints, such as `'1 2' == '3'`. Both sides are literals: nothing of a pair
is run but the call of the program's own function.
"""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from rolecall.sandbox.answers import Answer, answers
from rolecall.sandbox.base import Limits, Run
from rolecall.sandbox.bubblewrap import Bubblewrap
from rolecall.sandbox.inside.calls import encode
from rolecall.sandbox.verdict import is_same_output

MOST_PAIRS = 10  # at once
SAME = 1e-6  # numbers that differ by less are equal
MOST_SHOWN = 80  # characters of a value that is told


@dataclass(frozen=True, slots=True)
class Pair:
    """One input and the output that belongs to it, as Python literals."""

    given: str  # `add(1, 2)`, or a string: the standard input
    expected: str  # `3`, or a string: what is printed

    def __str__(self) -> str:
        return f"{self.given} == {self.expected}"


def read_pair(line: str, *, entry_point: str) -> Pair | None:
    """Read a line of the form above; None if it has another. No `entry_point`: input == output."""
    try:
        compared = ast.parse(line.strip(), mode="eval").body
        if not isinstance(compared, ast.Compare) or len(compared.ops) != 1:
            return None
        [call, right] = compared.left, compared.comparators[0]
        expected = ast.literal_eval(right)
        if not isinstance(compared.ops[0], ast.Eq):
            return None
        if entry_point:
            encode(_arguments(call, entry_point))
        elif not isinstance(ast.literal_eval(call), str) or not isinstance(expected, str):
            return None
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None
    return Pair(ast.unparse(call), ast.unparse(right))


def _arguments(call: ast.expr, entry_point: str) -> list[object]:
    """Return the literals that a function is called with. Raises ValueError for anything else."""
    match call:
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name == entry_point:
            return [ast.literal_eval(argument) for argument in arguments]
    raise ValueError(f"not a call of {entry_point} with plain arguments")


async def mismatches(
    sandbox: Bubblewrap,
    program: str,
    *,
    pairs: Sequence[Pair],
    entry_point: str,
    limits: Limits,
) -> dict[int, str]:
    """Return, by the number of each pair that fails, what the program does instead.

    A program that does not load, or never returns, fails all. Raises SandboxError.
    """
    assert len(pairs) <= MOST_PAIRS, f"{len(pairs)} pairs at once"
    if not pairs:
        return {}
    if not entry_point:
        return await _printed(sandbox, program, pairs=pairs, limits=limits)
    calls = [_arguments(ast.parse(pair.given, mode="eval").body, entry_point) for pair in pairs]
    results = await answers(sandbox, program, entry_point=entry_point, calls=calls, limits=limits)
    messages = [_told(*both) for both in zip(results, pairs, strict=True)]
    return {number: words for number, words in enumerate(messages) if words}


def _told(answer: Answer, pair: Pair) -> str:
    """Return the error of the answer, or ""."""
    if answer.missing:
        return answer.missing[:MOST_SHOWN]
    try:
        same = _same(answer.value, ast.literal_eval(pair.expected))
        return "" if same else f"gives {repr(answer.value)[:MOST_SHOWN]}"
    except Exception as error:  # of a value nested too deeply, of a number with too many digits
        return f"gives what cannot be compared ({type(error).__name__})"


def _same(given: object, expected: object) -> bool:
    if isinstance(given, (int, float)) and isinstance(expected, (int, float)):
        return given == expected or abs(given - expected) < SAME
    return given == expected


async def _printed(
    sandbox: Bubblewrap, program: str, *, pairs: Sequence[Pair], limits: Limits
) -> dict[int, str]:
    async def describe(pair: Pair) -> str:
        stdin, expected = ast.literal_eval(pair.given), ast.literal_eval(pair.expected)
        line = stdin if stdin.endswith("\n") else f"{stdin}\n"  # an empty one is no end of file
        ran = await sandbox.run(Run(program, stdin=line, limits=limits))
        if ran.status != "finished":
            last = (ran.stderr.strip().splitlines() or [""])[-1]
            return f"ends with {ran.limit or ran.status} {last[:MOST_SHOWN]}".strip()
        if is_same_output(ran.stdout, expected):
            return ""
        return f"prints {ran.stdout.rstrip()[:MOST_SHOWN]!r}"

    answers = await asyncio.gather(*(describe(pair) for pair in pairs))
    return {number: answer for number, answer in enumerate(answers) if answer}
