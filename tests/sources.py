"""Lists the source files of both packages, for tests that read all of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import rolecall
import rolecall_lab

PACKAGE = Path(rolecall.__file__).parent
LAB = Path(rolecall_lab.__file__).parent


def source_files() -> Iterator[tuple[str, Path]]:
    """Yield each file with its name: `agents/agent.py`, or `rolecall_lab/bench/run.py`."""
    for file in sorted(PACKAGE.rglob("*.py")):
        yield str(file.relative_to(PACKAGE)), file
    for file in sorted(LAB.rglob("*.py")):
        yield str(file.relative_to(LAB.parent)), file
