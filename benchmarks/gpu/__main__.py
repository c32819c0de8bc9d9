"""Runs the parts one after another, each in a process of its own with a time limit.

`python -m benchmarks.gpu --dry` runs them on a CPU that stands in for a GPU.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

import torch
from rich.console import Console

from benchmarks.gpu import results as files
from benchmarks.gpu.checks import PART_LIMIT_S, PARTS, SkippedError, load_checks, open_machine
from benchmarks.gpu.page import write_page

ERROR_LINES = 6


def main() -> int:
    """Return 1 where a check failed, so that `make` stops."""
    options = parse_options()
    is_dry = options.dry or not torch.cuda.is_available()
    machine = files.describe_machine(is_dry=is_dry)
    if options.child:
        run_part(options.child, options.output, machine=machine, is_dry=is_dry, only=options.only)
        return 0
    if options.again:
        options.output.unlink(missing_ok=True)
    if is_dry and not options.dry:
        print("This machine has no GPU: the dry form runs on a CPU that stands in for one.")
    for part in options.parts:
        start_part(part, options, machine=machine, is_dry=is_dry)
    results = files.load(options.output, machine=machine)
    files.show(results, Console(width=200 if not sys.stdout.isatty() else None))
    if options.page:
        write_page(results, options.page)
    return int(any(results.select("failed")))


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--only", default="", help="run the checks whose name contains this text")
    parser.add_argument("--output", type=Path, default=Path("build/gpu.json"))
    parser.add_argument("--page", type=Path, help="write the results as a page: docs/gpu.md")
    parser.add_argument("--again", action="store_true", help="also run what has passed")
    parser.add_argument("--dry", action="store_true", help="let a CPU stand in for the GPU")
    parser.add_argument("--child", choices=PARTS, help=argparse.SUPPRESS)
    return parser.parse_args()


def start_part(
    part: str, options: argparse.Namespace, *, machine: dict[str, str], is_dry: bool
) -> None:
    """Run a part in a child process; record a failure where it dies or takes too long."""
    command = [sys.executable, "-m", "benchmarks.gpu", "--child", part]
    command += ["--output", str(options.output), "--only", options.only]
    started = time.perf_counter()
    try:
        code = subprocess.run(
            command + ["--dry"] * is_dry, check=False, timeout=PART_LIMIT_S
        ).returncode
        error = f"the process ended with exit code {code}" if code else ""
    except subprocess.TimeoutExpired:
        error = f"the part did not end within {PART_LIMIT_S} s; `make gpu` continues with its rest"
    results = files.load(options.output, machine=machine)
    results.results.pop(f"{part}/process", None)
    if error:
        seconds = time.perf_counter() - started
        results.add(files.Result(part, "process", "failed", seconds, error=error))
    results.save(options.output)


def run_part(part: str, output: Path, *, machine: dict[str, str], is_dry: bool, only: str) -> None:
    """Run the checks of a part that have not passed yet, and keep the result of each at once."""
    with open_machine(Path("build/gpu-scratch"), is_dry=is_dry) as opened:
        for name, run in load_checks(part).items():
            results = files.load(output, machine=machine)
            if results.has_passed(part, name) or only not in name:
                continue
            started = time.perf_counter()
            result = files.Result(part, name, "passed", 0.0)
            try:
                result.figures = run(opened) or {}
            except SkippedError as reason:
                result.status, result.error = "skipped", str(reason)
            except Exception as error:  # the boundary: each check is recorded by itself
                lines = f"{type(error).__name__}: {error}".splitlines()
                result.status, result.error = "failed", "\n".join(lines[:ERROR_LINES])
            result.seconds = time.perf_counter() - started
            results.add(result)
            results.save(output)
            print(f"{part}/{name}: {result.status} in {result.seconds:.1f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
