"""Writes the random models of the benchmarks for OpenVINO, by Optimum Intel's exporter."""

from __future__ import annotations

from pathlib import Path

import torch
from optimum.exporters.openvino import export_from_model
from transformers import AutoModelForCausalLM


def write_openvino(folder: Path, dtype: str) -> Path:
    """Write a model that keeps keys and values into its folder, where it is not there yet."""
    target = folder / f"{dtype}-openvino"
    if (target / "openvino_model.bin").is_file():
        return target
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
    export_from_model(
        model, target, task="text-generation-with-past", patch_16bit_model=dtype == "bfloat16"
    )
    return target
