"""A page of Markdown in; its code blocks, written, run and compared with what the page shows, out.

- ```python title="mine.py" and ```yaml title="team.yaml" are written to files of these names.
- ```python without a title is run, in one namespace for the whole page.
- ```console holds commands after `$ `, and below each what it prints: every line must be printed,
  in this order; `...` stands for lines left out. A command that prints `rolecall: ...` fails.
- ```text is an example of one run, and is not compared.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from rolecall.config import registry
from tests.toy import command

FENCE = re.compile(r'^```(\w+)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
ERROR = "rolecall: "  # what the line of a command that fails begins with


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block."""

    language: str
    title: str  # name of the file that it is; "" for none
    body: str


def blocks(text: str) -> list[Block]:
    return [Block(*found) for found in FENCE.findall(text)]


def bodies(text: str, language: str) -> list[str]:
    """The blocks of a language, whatever their titles."""
    return [block.body for block in blocks(text) if block.language == language]


def run(page: Path) -> None:
    """Run the blocks of a page in the current folder, in their order."""
    names: dict[str, object] = {"__name__": "page"}
    sys.path.insert(0, os.getcwd())
    try:
        for block in blocks(page.read_text()):
            _run(block, names)
    finally:
        sys.path.pop(0)
        for block in blocks(page.read_text()):
            sys.modules.pop(block.title.removesuffix(".py"), None)


def _run(block: Block, names: dict[str, object]) -> None:
    if block.language == "console":
        for line, shown in commands(block.body):
            _run_command(line, shown)
    elif block.title:
        Path(block.title).parent.mkdir(parents=True, exist_ok=True)
        Path(block.title).write_text(block.body)
    elif block.language == "python":
        exec(compile(block.body, "page", "exec"), names)
    else:
        assert block.language == "text", f"nothing runs this block:\n{block.body}"


def commands(body: str) -> list[tuple[str, list[str]]]:
    """`$ a`, `b`, `$ c` -> (a, [b]), (c, [])."""
    found: list[tuple[str, list[str]]] = []
    for line in body.splitlines():
        if line.startswith("$ "):
            found.append((line.removeprefix("$ "), []))
        elif line.strip() not in ("", "..."):
            found[-1][1].append(line)
    return found


def _run_command(line: str, shown: list[str]) -> None:
    program, *arguments = shlex.split(line)
    assert program == "rolecall", f"a page's commands are those of rolecall: {line}"
    registry._module.cache_clear()  # each command is a process of its own, for its reader
    printed = io.StringIO()
    with redirect_stdout(printed), redirect_stderr(printed):
        status = command(*arguments)
    told = printed.getvalue()
    fails = any(expected.startswith(ERROR) for expected in shown)
    assert (status != 0) == fails, f"{line} ended with status {status}:\n{told}"
    rest = _plain(told)
    for expected in shown:
        _, found, rest = rest.partition(_plain(expected))
        assert found, f"{line} does not print {expected!r} there:\n{told}"


def _plain(text: str) -> str:
    """Without what depends on the width of a terminal: frames and the number of blanks."""
    return " ".join(re.sub(r"[\u2500-\u257f]", " ", text).split())
