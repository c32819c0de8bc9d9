"""Carries calls and plain values between a program and the test of it.

This one script runs in two sandboxes: with the program, whose function it calls, and with the
test, to which it offers a stand-in for that function. All that crosses is JSON of plain values,
so neither an object that equals everything nor a patched built-in comes over to the test, and
nothing of the test but arguments comes over to the program.
"""

from __future__ import annotations

import builtins
import json
import os
import sys
import types
from collections.abc import Callable, Iterable
from typing import Any, TextIO

Names = dict[str, Any]  # what a program has defined
Message = dict[str, Any]  # a line of JSON between the two sides


PLAIN = "numbers, texts, bytes, lists, tuples, sets and dicts"
MOST_WORDS = 2000  # characters of an error's text
MOST_ALIKE = 100  # elements of a set, or keys, of one hash; each is compared with all before it
MOST_COMPARED = 2_000_000  # values while one answer is decoded: some hundredths of a second


class Ended(BaseException):
    """The program cannot be asked any more; no `except Exception` of a test may hide it."""


class UnserialisableError(TypeError):
    """A value that is not plain."""


def main() -> None:
    inbox, outbox = os.fdopen(os.dup(0), newline="\n"), os.fdopen(os.dup(1), "w")
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):  # what is printed is nobody's
        os.dup2(nothing, number)

    def say(message: Message) -> None:
        outbox.write(json.dumps(message) + "\n")
        outbox.flush()

    job = json.loads(inbox.readline())
    if "test" in job:
        say(examine(job, lambda message: ask(message, say, inbox)))
    else:
        serve(job, say, inbox)


def serve(job: dict[str, str], say: Callable[[Message], None], inbox: Iterable[str]) -> None:
    """Define the program, then answer calls of its function until nobody asks."""
    module = types.ModuleType("program")
    sys.modules["program"] = module
    try:
        exec(compile(job["program"], "<program>", "exec"), module.__dict__)
        function = getattr(module, job["entry_point"])
        say({"value": None})
    except BaseException as error:  # SystemExit too
        say(pack_error(error))
        return
    for line in inbox:
        call = json.loads(line)
        try:
            arguments = [decode(value) for value in call["arguments"]]
            named = {name: decode(value) for name, value in call["named"].items()}
            answer = {"value": encode(function(*arguments, **named))}
        except BaseException as error:
            answer = pack_error(error)
        say(answer)


def pack_error(error: BaseException) -> Message:
    return {"raised": type(error).__name__, "text": str(error)[:MOST_WORDS]}


def examine(job: dict[str, str], asked: Callable[[Message], Message]) -> Message:
    """Run the test and return its verdict, {"passed": ..., "reason": ..., "calls": ...}."""
    names: Names = {"__name__": "test"}
    calls, ended, strange = 0, "", ""

    def stand_in(*arguments: Any, **named: Any) -> Any:
        nonlocal calls, ended, strange
        try:
            message = {
                "arguments": [encode(value) for value in arguments],
                "named": {name: encode(value) for name, value in named.items()},
            }
        except UnserialisableError as error:
            strange = str(error)
            raise
        calls += 1
        try:
            answer = asked(message)
            if "raised" not in answer:
                return decode(answer["value"])
            kind = answer["raised"]
            raised_there = error_named(str(kind), str(answer["text"]), names)
        except Exception as error:  # no answer, or none that has the form it should
            ended = f"the program's answer cannot be read: {type(error).__name__}"
            raise Ended from error
        if isinstance(raised_there, Exception):
            raise raised_there
        ended = f"the program raised {kind}"
        raise Ended

    stand_in.__name__ = job["entry_point"]
    reason = ""
    try:
        exec(compile(job["prelude"], "<prelude>", "exec"), names)
        names[job["entry_point"]] = stand_in
        exec(compile(job["test"], "<test>", "exec"), names)
        if "check" in names:
            names["check"](stand_in)
    except BaseException as error:
        reason = f"{type(error).__name__}: {str(error)[:MOST_WORDS]}"
    reason = ended or reason
    return {"passed": not reason, "reason": reason, "calls": calls, "strange": strange}


def ask(message: Message, say: Callable[[Message], None], inbox: TextIO) -> Message:
    say(message)
    answer: Message = json.loads(inbox.readline())
    return answer


def error_named(name: str, text: str, names: Names) -> BaseException:
    """Return an error of that name: a built-in one, one that the test knows, or a new one."""
    kind: Any = getattr(builtins, name, names.get(name))
    if not (isinstance(kind, type) and issubclass(kind, BaseException)):
        kind = type(name, (Exception,), {})
    error: BaseException = kind.__new__(kind, text)
    return error


def encode(value: Any) -> Any:
    """Encode a plain value for JSON: (1, {2}) -> {"tuple": [1, {"set": [2]}]}. Raises
    UnserialisableError.
    """
    if value is None or isinstance(value, bool):
        return value
    for kind in (int, float, str):
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, list):
        return [encode(item) for item in value]
    for name, collection in (("tuple", tuple), ("set", set), ("frozenset", frozenset)):
        if isinstance(value, collection):
            return {name: [encode(item) for item in value]}
    if isinstance(value, dict):
        return {"dict": [[encode(key), encode(item)] for key, item in value.items()]}
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if hasattr(value, "dtype") and getattr(value, "shape", None) == ():
        return encode(value.item())  # a number of numpy's
    raise UnserialisableError(
        f"a value of type {type(value).__name__} cannot be passed; {PLAIN} can"
    )


def decode(value: Any) -> Any:
    """Return the value of such JSON. Raises Strange for one that would take long to build."""
    return _decoded(value, Comparisons(MOST_COMPARED))


class Comparisons:
    """Counts how many values may still be compared while sets and dictionaries are built.

    Values of one hash are compared with one another, sets in them element by element, and so on:
    a few nested sets of a megabyte take seconds, in which no other thread of the process runs.
    """

    def __init__(self, left: int) -> None:
        self.left = left

    def allow(self, values: list[Any]) -> None:
        """Raise Strange if a collection of these values would need too many of them."""
        hashes = list(map(hash, values))
        if len(set(hashes)) == len(hashes):
            return  # nothing is compared
        alike: dict[int, list[Any]] = {}
        for value, code in zip(values, hashes, strict=True):
            alike.setdefault(code, []).append(value)
        for group in alike.values():
            if len(group) > MOST_ALIKE:
                raise UnserialisableError(
                    f"more than {MOST_ALIKE} values of one collection have the same hash"
                )
            if len(group) > 1:
                most = max(self.cost(value) for value in group)
                self.spend(most * len(group) * (len(group) - 1) // 2)

    def cost(self, value: Any) -> int:
        """Return the cost of comparing a value with another one of its hash, at the worst."""
        self.spend(1)
        if isinstance(value, tuple):
            return 1 + sum(map(self.cost, value))
        if isinstance(value, frozenset):
            return 1 + MOST_ALIKE * sum(map(self.cost, value))
        return 1

    def spend(self, number: int) -> None:
        self.left -= number
        if self.left < 0:
            raise UnserialisableError("too many values of the same hash are in one another")


def _decoded(value: Any, comparisons: Comparisons) -> Any:
    if isinstance(value, list):
        return [_decoded(item, comparisons) for item in value]
    if not isinstance(value, dict):
        return value
    [(name, content)] = value.items()
    if name == "dict":
        pairs = [(_decoded(key, comparisons), _decoded(item, comparisons)) for key, item in content]
        comparisons.allow([key for key, _ in pairs])
        return dict(pairs)
    if name == "bytes":
        return bytes.fromhex(content)
    if name == "complex":
        return complex(*content)
    values = [_decoded(item, comparisons) for item in content]
    if name != "tuple":
        comparisons.allow(values)
    return {"tuple": tuple, "set": set, "frozenset": frozenset}[name](values)


if __name__ == "__main__":
    main()
