"""Describes what one part of a run takes of a device's memory, and when."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

BYTES = {"float32": 4, "bfloat16": 2}
MOMENTS = 8
HOST = "the computer's memory"
Phase = Literal["always", "sampling"] | str  # or "update of POLICY"


@dataclass(frozen=True, slots=True)
class Need:
    """The memory that one part takes on one device."""

    owner: str  # e.g. `policy solver`
    part: str  # e.g. weights
    num_bytes: int | None  # None: the base is not on this machine, or cannot be measured
    device: str
    phase: Phase = "always"
    parameters: int | None = None
    asleep: str = ""  # where it is in the other phases


def need_of(
    owner: str,
    part: str,
    count: int | None,
    bytes_each: float,
    device: str,
    phase: Phase = "always",
    asleep: str = "",
) -> Need:
    """Return the need of `count` numbers, or of an unknown number of them."""
    size = None if count is None else int(count * bytes_each)
    return Need(owner, part, size, device, phase, count, asleep)


def training(
    owner: str, count: int | None, *, dtype: str, device: str, phase: Phase
) -> Iterator[Need]:
    """Weights and what their optimizer needs, of weights that never leave the device.

    `phase`: in which there are gradients.
    """
    yield need_of(owner, "weights", count, BYTES[dtype], device)
    if dtype != "float32":
        yield need_of(owner, "masters", count, 4, device)
    yield need_of(owner, "moments", count, MOMENTS, device)
    yield need_of(owner, "gradients", count, 4, device, phase)
