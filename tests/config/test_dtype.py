"""`learner.dtype: auto` takes bfloat16 where it is fast."""

from __future__ import annotations

import pytest
import torch

from rolecall.config.learners import FsdpLearnerConfig, LocalLearnerConfig, choose_dtype


@pytest.mark.parametrize(
    ("has", "dtype"),
    [
        ({"avx512_bf16": True, "amx_bf16": False}, "bfloat16"),
        ({"avx512_bf16": False, "amx_bf16": True}, "bfloat16"),
        ({"avx512_bf16": False, "amx_bf16": False}, "float32"),
        ({"architecture": "aarch64"}, "float32"),
    ],
)
def test_a_processor_takes_what_it_multiplies(monkeypatch, has, dtype):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: has)
    assert choose_dtype("cpu") == dtype
    for kind in (LocalLearnerConfig, FsdpLearnerConfig):
        section = kind.model_validate({"name": kind().name, "dtype": "auto", "device": "cpu"})
        assert section.dtype == dtype


def test_a_gpu_takes_bfloat16_and_other_devices_float32(monkeypatch):
    assert choose_dtype("cuda:1") == "bfloat16"
    assert choose_dtype("mps") == "float32"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert choose_dtype("auto") == "bfloat16"
