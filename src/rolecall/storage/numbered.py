"""Lists the numbered files of a run folder: episodes by step, evaluations, journals."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path


def iterate_numbered(
    folder: Path, suffix: str, *, kind: str = "step"
) -> Iterator[tuple[int, Path]]:
    """Yield (3, step-000003.jsonl) for every such file of a folder; other files do not count."""
    for path in sorted(folder.glob(f"{kind}-*.{suffix}")):
        if re.fullmatch(rf"{kind}-\d+", path.stem, re.ASCII):
            yield int(path.stem.removeprefix(f"{kind}-")), path
