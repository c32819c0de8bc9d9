"""Decides whether a program passes hidden tests.

The program never shares a process, or a sandbox, with what it must not see: the test runs in a
sandbox of its own and calls the program's function through us; expected outputs stay here.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rolecall.core.json_types import JsonObject
from rolecall.sandbox.base import Limits, Run, Sandbox, SandboxError
from rolecall.sandbox.box import Box
from rolecall.sandbox.bubblewrap import Boxes, Bubblewrap
from rolecall.sandbox.inside import calls

SCRIPT = Path(calls.__file__).read_text()
LOADED = json.dumps({"value": None}).encode()


@dataclass(frozen=True, slots=True)
class Verdict:
    passed: bool
    reason: str = ""  # why it did not


@dataclass(frozen=True, slots=True)
class Examination:
    """A function, and the test that is to be kept from it."""

    program: str  # the source that defines the function
    entry_point: str  # its name
    test: str  # asserts on that name, or defines `check(candidate)`
    prelude: str = ""  # trusted source whose names the test uses, such as the task's own


async def examine(
    sandbox: Bubblewrap, examination: Examination, *, limits: Limits | None = None
) -> Verdict:
    """Return whether the test ends without an error, within the wall time for all its calls
    together.

    Arguments and results are plain values (numbers, text, bytes, None and collections of these),
    and errors cross by name; a function that changes its arguments changes copies.
    Raises ValueError for a test that no program can pass or fail: one that never calls the
    function, or calls it with something else. Raises SandboxError if the sandbox fails.
    """
    return await sandbox.work(lambda boxes: _examine(boxes, examination, limits or Limits()))


def _examine(boxes: Boxes, examination: Examination, limits: Limits) -> Verdict:
    deadline = time.monotonic() + limits.wall_s
    run = Run(SCRIPT, limits=limits)
    program = boxes.open(run, talks=True)
    job = {"program": examination.program, "entry_point": examination.entry_point}
    if trouble := begun(program, job, deadline):
        return Verdict(False, trouble)
    test = boxes.open(run, talks=True)
    test.say(json.dumps(job | {"test": examination.test, "prelude": examination.prelude}).encode())
    while (line := test.hear(deadline)) is not None:
        message = json.loads(line)
        if "passed" in message:
            return _verdict(message)
        program.say(line)
        reply = program.hear(deadline)
        if reply is None:
            return Verdict(False, "a call of the program does not return")
        test.say(reply)
    if time.monotonic() >= deadline:
        return Verdict(False, "the test does not end in time")
    ended = test.finish()
    if not ended.limit:
        raise SandboxError(f"a test ended without a verdict: {ended.stderr.strip()}")
    return Verdict(False, f"the test's limit is reached: {ended.limit}")


def begun(program: Box, job: dict[str, str], deadline: float) -> str:
    """Has the SCRIPT in a box load the program; why it did not, or "" if it did."""
    program.say(json.dumps(job).encode())
    loaded = program.hear(deadline)
    if loaded == LOADED:
        return ""
    # Not looked into: it is the program's word.
    reason = (
        "it ends or takes too long" if loaded is None else loaded[:2000].decode(errors="replace")
    )
    return f"the program does not load: {reason}"


def _verdict(message: JsonObject) -> Verdict:
    """Return the verdict of the test's side; the program has no part in it."""
    if message["strange"]:
        raise ValueError(f"the test's arguments are not plain values: {message['strange']}")
    if message["passed"] and not message["calls"]:
        raise ValueError("the test passes without calling the function")
    return Verdict(message["passed"], message["reason"])


async def stdin_tests(
    sandbox: Sandbox,
    program: str,
    *,
    inputs: Sequence[str],
    outputs: Sequence[str],
    limits: Limits | None = None,
) -> list[bool]:
    """Return for each input whether the program ends well and prints the expected output.

    Spaces at the ends of lines and empty lines at the end do not count.

    Raises SandboxError if the sandbox fails.
    """
    limits = limits or Limits()

    async def passes(given: str, expected: str) -> bool:
        # Output that is longer than twice the expected text is cut, and counts as wrong.
        enough = max(limits.output_bytes, 2 * len(expected.encode()) + 2)
        held = dataclasses.replace(limits, output_bytes=enough)
        ran = await sandbox.run(Run(program, stdin=given, limits=held))
        is_whole = ran.status == "finished" and not ran.stdout_omitted
        return is_whole and is_same_output(ran.stdout, expected)

    pairs = zip(inputs, outputs, strict=True)
    return list(await asyncio.gather(*(passes(stdin, expected) for stdin, expected in pairs)))


def is_same_output(printed: str, expected: str) -> bool:
    """Compare what a program printed line by line, as most judges of programs do.

    Spaces at the ends of lines and empty lines at the end are ignored, so it does not matter
    whether lines end as on Unix or as on Windows. Spaces at the beginning of a line count.
    """
    return _lines(printed) == _lines(expected)


def _lines(output: str) -> list[str]:
    return [line.rstrip() for line in output.rstrip().split("\n")]
