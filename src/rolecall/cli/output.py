"""Writes what a command found: JSON where it was asked for, and a line for each problem."""

from __future__ import annotations

import json
import sys
from contextlib import AbstractContextManager, nullcontext, redirect_stdout
from pathlib import Path
from typing import Any

import typer

from rolecall.runtime.secret_texts import scrub
from rolecall.runtime.visible_text import visible


def people_on_stderr(json_file: str | None) -> AbstractContextManager[Any]:
    """Send what people read to stderr where JSON goes to the output."""
    return redirect_stdout(sys.stderr) if json_file == "-" else nullcontext()


def emit(found: Any, json_file: str | None) -> None:
    """Write what a command found as JSON, where that was asked for."""
    if json_file is None:
        return
    text = json.dumps(found, indent=2)
    if json_file == "-":
        typer.echo(text)
    else:
        Path(json_file).write_text(text + "\n")


def fail(*problems: str, status: int) -> None:
    """Print a line on stderr for each problem; it may hold what a server or a file says."""
    for problem in problems:
        print(f"rolecall: {visible(' '.join(scrub(problem).split()))}", file=sys.stderr)
    sys.exit(status)
