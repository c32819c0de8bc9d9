"""Describes what one part of a run takes of a device's memory, and when."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from rolecall.models.quantized import Quantization, linear_layers, num_bytes
from rolecall.models.sizes import Size

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
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


def make_need(
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
    yield make_need(owner, "weights", count, BYTES[dtype], device)
    if dtype != "float32":
        yield make_need(owner, "masters", count, 4, device)
    yield make_need(owner, "moments", count, MOMENTS, device)
    yield make_need(owner, "gradients", count, 4, device, phase)


def weight_needs(
    owner: str,
    size: Size | None,
    quantization: Quantization,
    dtype: str,
    device: str,
    *,
    share: float = 1.0,
) -> Iterator[Need]:
    """Yield weights as they are stored, with the largest quantized layer unpacked.

    `share`: of an unquantized base, on this device.
    """
    if quantization == "none" or size is None:
        count = None if size is None else size.parameters
        yield make_need(owner, "weights", count, BYTES[dtype] * share, device)
        return
    layers = [layer.weight.numel() for layer in linear_layers(size.model).values()]
    rest = BYTES[dtype] * (size.parameters - sum(layers))
    held = int(num_bytes(size.model, quantization) + rest)
    yield Need(owner, f"weights in {quantization}", held, device, parameters=size.parameters)
    yield Need(owner, "one layer unpacked", BYTES[dtype] * max(layers, default=0), device)


def describe_cache(num_bytes: int, size: Size | None, dtype: str, longest: int) -> str:
    """Return what a cache holds, in words; `longest`: tokens of the longest row."""
    if size is None or not size.cache_per_token:
        return "keys and values"
    tokens = num_bytes // (size.cache_per_token * BYTES[dtype])
    return f"keys and values of {tokens:,} tokens, {tokens // longest:,} of the longest rows"
