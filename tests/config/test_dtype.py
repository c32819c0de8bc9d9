"""`learner.dtype: auto` takes bfloat16 where it is fast."""

from __future__ import annotations

import pytest
import torch

from rolecall.config.learners import FsdpLearnerConfig, LocalLearnerConfig, choose_dtype
from rolecall.config.load import find, load
from rolecall.config.schema import Config
from tests.toy import command


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


@pytest.mark.parametrize("name", ["local", "fsdp", "replicated"])
def test_training_in_float16_is_refused_with_the_reason(name):
    with pytest.raises(ValueError, match=r"float16 is for sampling alone: gradients below 6e-8"):
        Config.model_validate(
            load(find("math_alone")).model_dump() | {"learner": {"name": name, "dtype": "float16"}}
        )


def test_sampling_in_float16_needs_a_gpu_and_weights_of_its_own(capsys, tmp_path):
    sampling = ["engine.dtype=float16", "--output", tmp_path / "run"]
    assert command("train", "math_alone", *sampling) == 2
    assert "set engine.separate_weights=true" in capsys.readouterr().err
    assert command("train", "math_alone", "engine.separate_weights=true", *sampling) == 2
    [line] = capsys.readouterr().err.strip().splitlines()
    assert "engine.dtype: float16 needs a GPU, and cpu multiplies it slowly" in line
    assert not (tmp_path / "run").exists()
