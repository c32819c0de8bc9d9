"""Registers the checks of each part, and describes the machine that a check runs on."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

PARTS = ("attention", "engine", "learner", "heads", "memory", "ranks", "runs", "speed")
PART_LIMIT_S = 450  # of one part, so that it fits into a call of eight minutes
Figures = dict[str, float]  # what a check measured, by name with its unit


class SkippedError(Exception):
    """The check cannot run on this machine, for the reason in its text."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The device that is checked; in a dry run a CPU stands in for it."""

    device: torch.device
    is_dry: bool
    scratch: Path  # a folder for models and runs, kept between parts

    def synchronize(self) -> None:
        """Wait until the device has computed all that it was given."""
        if not self.is_dry:
            torch.cuda.synchronize(self.device)

    def require_gpu(self, why: str) -> None:
        """Skip the rest of the check in a dry run. Raises SkippedError."""
        if self.is_dry:
            raise SkippedError(why)


Check = Callable[[Machine], Figures | None]
_checks: dict[str, dict[str, Check]] = {}


def check(function: Check) -> Check:
    """Register a function of a module `part_NAME` under its own name."""
    part = function.__module__.rpartition("part_")[2]
    _checks.setdefault(part, {})[function.__name__] = function
    return function


def add_checks(part: str, checks: dict[str, Check]) -> None:
    """Register checks that a loop has made."""
    _checks.setdefault(part, {}).update(checks)


def load_checks(part: str) -> dict[str, Check]:
    """Return the checks of a part by name, in the order in which its module defines them."""
    importlib.import_module(f"benchmarks.gpu.part_{part}")
    return _checks[part]


@contextmanager
def open_machine(scratch: Path, *, is_dry: bool) -> Iterator[Machine]:
    """Yield the first GPU, or in a dry run a CPU that stands in for one."""
    scratch.mkdir(parents=True, exist_ok=True)
    if not is_dry:
        yield Machine(torch.device("cuda", 0), False, scratch)
        return
    import peft  # noqa: F401  # bitsandbytes, which it imports, looks for real kernels

    from tests.pretend_gpu import pretend_gpu
    from tests.pretend_kernels import pretend_kernels

    with pretend_kernels(), pretend_gpu() as device:
        yield Machine(device, True, scratch)
