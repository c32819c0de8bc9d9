"""Names and lists the numbered files of a run folder: episodes by step, evaluations, journals."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path


def name_numbered(number: int, suffix: str, *, kind: str = "step") -> str:
    """Return `step-000003.jsonl`."""
    return f"{kind}-{number:06d}.{suffix}"


def iterate_numbered(
    folder: Path, suffix: str, *, kind: str = "step"
) -> Iterator[tuple[int, Path]]:
    """Yield (3, step-000003.jsonl) for every such file of a folder, by number; others do not count.

    Nothing is yielded where there is no such folder.
    """
    # Names are sorted, and not paths: of 2,000 files that takes a tenth of the time.
    name = re.compile(rf"{re.escape(kind)}-(\d+)\.{re.escape(suffix)}", re.ASCII)
    try:
        matches = [match for match in map(name.fullmatch, os.listdir(folder)) if match]
    except OSError:
        return
    for number, text in sorted((int(match[1]), match[0]) for match in matches):
        yield number, folder / text
