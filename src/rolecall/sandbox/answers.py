"""Calls a program's function in a sandbox, and returns what each call gave or raised.

The program is alone in its sandbox: only arguments go in, only plain values come out, and they
are compared here. So one sandbox is enough where a test is no more than calls and their values.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rolecall.sandbox.base import Limits, Run
from rolecall.sandbox.bubblewrap import Boxes, Bubblewrap
from rolecall.sandbox.inside.calls import decode, encode
from rolecall.sandbox.verdict import SCRIPT, begun


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of one call: a plain value, or why there is none."""

    value: Any = None
    missing: str = ""  # "raises ValueError", "does not return", ...


async def answers(
    sandbox: Bubblewrap,
    program: str,
    *,
    entry_point: str,
    calls: Sequence[Sequence[object]],
    limits: Limits | None = None,
) -> list[Answer]:
    """Return one answer for each list of arguments, in order; all calls share the wall time.

    Raises Strange (a TypeError) for arguments that are not plain values, SandboxError if the
    sandbox fails.
    """
    encoded = [_said(arguments) for arguments in calls]
    limits = limits or Limits()
    job = {"program": program, "entry_point": entry_point}
    return await sandbox.work(lambda boxes: _answers(boxes, job, encoded, limits))


def _said(arguments: Sequence[object]) -> bytes:
    return json.dumps({"arguments": [encode(value) for value in arguments], "named": {}}).encode()


def _answers(
    boxes: Boxes, job: dict[str, str], calls: Sequence[bytes], limits: Limits
) -> list[Answer]:
    deadline = time.monotonic() + limits.wall_s
    program = boxes.open(Run(SCRIPT, limits=limits), talks=True)
    trouble = begun(program, job, deadline)
    results: list[Answer] = []
    while not trouble and len(results) < len(calls):
        program.say(calls[len(results)])
        reply = program.hear(deadline)
        if reply is None:
            trouble = "does not return"
        else:
            results.append(_read(reply))
    return results + [Answer(missing=trouble)] * (len(calls) - len(results))


def _read(reply: bytes) -> Answer:
    """Read the program's reply, which may be anything."""
    try:
        message = json.loads(reply)
        if "raised" in message:
            return Answer(missing=f"raises {message['raised']}")
        return Answer(decode(message["value"]))
    except Exception as error:
        return Answer(missing=f"gives what cannot be read ({type(error).__name__})")
