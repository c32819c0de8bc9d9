"""Audits a run or a dump: which checks were made, what they found, and which were not possible."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from rolecall.core.errors import ConfigError
from rolecall.core.json_types import Record
from rolecall.explain.audit import own_runs
from rolecall.explain.audit.checks import (
    CHECKS,
    Finding,
    NotPossibleError,
    duplicates,
    mixed_prompts,
    other_version,
)
from rolecall.explain.audit.readers import read_dump
from rolecall.runtime.progress import activity
from rolecall.runtime.visible_text import visible
from rolecall.storage.numbered import iterate_numbered
from rolecall.storage.run_folder import RunFolder

MOST_LINES = 5  # of one check that are printed
OF_EPISODES = {
    "advantage changed": own_runs.check_advantages,
    "reward overwritten": own_runs.check_outcomes,
    "wrong mean": own_runs.check_groups,
    "failed episode counted": own_runs.check_failed,
}
OF_OWN_SAMPLES = {
    "duplicated sample": duplicates,
    "log-probs of another version": other_version,
    "mixed prompts": mixed_prompts,
}


@dataclass(slots=True)
class Audit:
    """The findings of an audit, and which checks it made."""

    source: str  # what was read, such as `a dump of TRL`
    num_samples: int = 0
    findings: list[Finding] = field(default_factory=list)
    checks: list[str] = field(default_factory=list)  # that were made
    not_possible: dict[str, str] = field(default_factory=dict)  # check -> what it lacks

    def run(self, name: str, check: Callable[[Any], Iterator[Finding]], data: Any) -> None:
        """Make one check."""
        try:
            self.findings += check(data)
        except NotPossibleError as error:
            self.not_possible.setdefault(name, str(error))
            return
        if name not in self.checks:
            self.checks.append(name)

    def as_record(self) -> Record:
        """Return the audit as plain data."""
        return asdict(self)


def audit(path: Path) -> Audit:
    """Audit a run folder, or a file or folder that a trainer has written.

    Raises ConfigError where it cannot be read.
    """
    if (path / "config.yaml").is_file() or (path / "stages.yaml").is_file():
        return _audit_run(RunFolder.existing(path))
    if path.suffix == ".parquet" and _is_own(path):
        return _audit_files("a step of rolecall", [path])
    source, samples = read_dump(path)
    result = Audit(source, len(samples))
    for name, check in CHECKS.items():
        result.run(name, check, samples)
    return result


def _audit_run(folder: RunFolder) -> Audit:
    files = [file for _, file in iterate_numbered(folder.episodes, "parquet", kind="step")]
    if not files:
        raise ConfigError(f"{folder.path} has no episodes yet")
    return _audit_files("a run of rolecall", files)


def _audit_files(source: str, files: list[Path]) -> Audit:
    result = Audit(source)
    with activity("auditing", total=len(files), unit="steps") as now:
        for file in files:
            episodes, samples = own_runs.read_own(file)
            result.num_samples += len(samples)
            for name, check in OF_EPISODES.items():
                result.run(name, check, episodes)
            for name, check_samples in OF_OWN_SAMPLES.items():
                result.run(name, check_samples, samples)
            now.done += 1
    for name in result.checks:
        result.not_possible.pop(name, None)
    return result


def _is_own(path: Path) -> bool:
    from pyarrow import parquet

    try:
        return "turn" in parquet.read_schema(path).names
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error


def print_audit(result: Audit, console: Console) -> None:
    """Print a line for each finding, at most five of a kind, and what was and was not checked."""
    numbers: dict[str, int] = {}
    for finding in result.findings:
        numbers[finding.check] = numbers.get(finding.check, 0) + 1
        if numbers[finding.check] <= MOST_LINES:
            where = visible(f" ({finding.places[0]})") if finding.places else ""
            line = Text.assemble((finding.check, "bold red"), f": {visible(finding.message)}")
            console.print(line.append(where, style="dim"), soft_wrap=True)
    for name, lines in numbers.items():
        if lines > MOST_LINES:
            console.print(f"{name}: {lines - MOST_LINES} more", highlight=False)
    number = len(result.findings)
    verdict = "no fault" if number == 0 else "1 fault" if number == 1 else f"{number} faults"
    console.print(
        f"{verdict} in {result.num_samples:,} samples of {result.source}; "
        f"{len(result.checks)} checks: {', '.join(result.checks)}",
        highlight=False,
        soft_wrap=True,
    )
    for name, why in result.not_possible.items():
        console.print(Text(f"not possible: {name} ({why})", style="yellow"), soft_wrap=True)
