"""Weights that are written one after another are read as any safetensors file is."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

from rolecall.models.weight_stream import write_stream


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_what_is_written_is_read(dtype, tmp_path):
    wanted = {
        "a": torch.randn(3, 5).to(dtype), "b": torch.randn(7).to(dtype),
        "a column": torch.randn(4, 4).to(dtype)[:, 1], "none": torch.empty(0, 2, dtype=dtype),
        "one": torch.tensor(2.0, dtype=dtype),
    }  # fmt: skip
    shapes = {name: (tensor.dtype, tensor.shape) for name, tensor in wanted.items()}
    write_stream(tmp_path / "model.safetensors", shapes, iter(wanted.values()))
    found = load_file(tmp_path / "model.safetensors")
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    assert all(found[name].dtype == dtype for name in wanted)


def test_a_tensor_that_was_not_announced_is_refused(tmp_path):
    shapes = {"a": (torch.float32, torch.Size([2]))}
    with pytest.raises(ValueError, match=r"a is torch\.float32 \[3\], not"):
        write_stream(tmp_path / "x", shapes, [torch.zeros(3)])
