"""Keeps what benchmarks found in a file for each processor, where newer records replace older ones.

Ratios to a peer hold on the processor that they were measured on: on another one the same code may
be faster or slower than the same peer.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from rolecall_lab.bench.machine import header


def results_file(folder: Path, processor: str | None = None) -> Path:
    """`AMD EPYC, family 25, model 17` -> FOLDER/amd-epyc-family-25-model-17.json"""
    name = processor or header()["machine"]["cpu"]
    return folder / f"{re.sub('[^a-z0-9]+', '-', name.lower()).strip('-')}.json"


def keep(found: dict[str, Any], folder: Path) -> Path:
    """Put new records into the file of this processor."""
    file, commit = (
        results_file(folder, found["header"]["machine"]["cpu"]),
        found["header"]["commit"],
    )
    old = json.loads(file.read_text())["records"] if file.is_file() else []
    records = {(one["name"], one["peer"]): one for one in old}
    records |= {(one["name"], one["peer"]): one | {"commit": commit} for one in found["records"]}
    folder.mkdir(parents=True, exist_ok=True)
    kept = {"header": found["header"], "records": list(records.values())}
    file.write_text(json.dumps(kept, indent=2) + "\n")
    return file
