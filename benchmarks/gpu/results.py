"""Keeps the results of the checks in one JSON file, and shows them as tables."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

import torch
import transformers
from rich.console import Console
from rich.table import Table

Status = Literal["passed", "failed", "skipped"]


@dataclass(slots=True)
class Result:
    """What came of one check."""

    part: str
    name: str
    status: Status
    seconds: float
    figures: dict[str, float] = field(default_factory=dict)
    error: str = ""  # its first lines, or the reason of a skip


@dataclass(slots=True)
class Results:
    """All results of one machine."""

    machine: dict[str, str]
    results: dict[str, Result] = field(default_factory=dict)  # by part/name

    def add(self, result: Result) -> None:
        self.results[f"{result.part}/{result.name}"] = result

    def has_passed(self, part: str, name: str) -> bool:
        result = self.results.get(f"{part}/{name}")
        return result is not None and result.status == "passed"

    def select(self, status: Status) -> Iterator[Result]:
        return (one for one in self.results.values() if one.status == status)

    def save(self, path: Path) -> None:
        """Replace the file as a whole: a part may be killed at its time limit."""
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(".new")
        new.write_text(json.dumps(asdict(self), indent=1) + "\n")
        os.replace(new, path)


def load(path: Path, *, machine: dict[str, str]) -> Results:
    """Return the results of this file; none where it is absent or comes from another machine."""
    if not path.is_file():
        return Results(machine)
    content = json.loads(path.read_text())
    if content["machine"] != machine:
        return Results(machine)
    return Results(machine, {key: Result(**one) for key, one in content["results"].items()})


def describe_machine(*, is_dry: bool) -> dict[str, str]:
    """Return the device, the versions and the commit that the results depend on."""
    query = ("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return {
        "device": "a CPU that stands in for a GPU" if is_dry else torch.cuda.get_device_name(0),
        "driver": "" if is_dry else _first_line(*query),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "commit": os.environ.get("GPU_COMMIT") or _first_line("git", "rev-parse", "HEAD"),
    }


def _first_line(*command: str) -> str:
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return ""
    return (found.stdout.splitlines() or [""])[0].strip()


def show(results: Results, console: Console) -> None:
    """Print what was measured, and then what failed with the first lines of each error."""
    console.print(" ".join(f"{key}={value}" for key, value in results.machine.items() if value))
    figures = Table("check", "status", "seconds", "figures")
    for key, one in results.results.items():
        text = ", ".join(f"{name} {value:.4g}" for name, value in one.figures.items())
        reason = one.error if one.status == "skipped" else text
        figures.add_row(key, one.status, f"{one.seconds:.1f}", reason)
    console.print(figures)
    failed = list(results.select("failed"))
    if failed:
        table = Table("failed", "error")
        for one in failed:
            table.add_row(f"{one.part}/{one.name}", one.error)
        console.print(table)
    statuses: tuple[Status, ...] = ("passed", "failed", "skipped")
    console.print(", ".join(f"{len(list(results.select(one)))} {one}" for one in statuses))
