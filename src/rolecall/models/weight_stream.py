"""Writes a safetensors file whose tensors come one after another, so that one is held at a time.

Format: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor

NAMES = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}


def write_stream(
    file: Path, shapes: Mapping[str, tuple[torch.dtype, torch.Size]], tensors: Iterable[Tensor]
) -> None:
    """Write `tensors`, which come in the order of `shapes` and are as these say.

    Raises ValueError where one is not.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape) in shapes.items():
        start, end = end, end + shape.numel() * dtype.itemsize
        header[name] = {"dtype": NAMES[dtype], "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # so that tensors are aligned
    with file.open("wb") as opened:
        opened.write(len(text).to_bytes(8, "little"))
        opened.write(text)
        for (name, expected), tensor in zip(shapes.items(), tensors, strict=True):
            if (tensor.dtype, tensor.shape) != expected:
                raise ValueError(f"{name} is {tensor.dtype} {list(tensor.shape)}, not {expected}")
            copy = tensor.detach().to("cpu", copy=True).contiguous()  # FSDP resizes its own
            opened.write(copy.reshape(-1).view(torch.uint8).numpy().data)
