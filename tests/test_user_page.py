"""The README's team.yaml as it stands, on tiny random models of the families it names."""

from __future__ import annotations

import json
import shutil
import sys

import pytest
from tests.test_readme import blocks

from rolecall import cli


@pytest.mark.parametrize("algorithm", ["drmas", "grpo"])
def test_the_page_trains_any_family_with_full_weights_and_an_adapter(
    any_model_folder, shared, tmp_path, monkeypatch, algorithm
):
    [page] = blocks("yaml")
    monkeypatch.chdir(tmp_path)
    for name in ("Qwen3-0.6B", "Qwen3-4B"):
        shutil.copytree(any_model_folder, tmp_path / "Qwen" / name)  # found before any hub
    (tmp_path / "team.yaml").write_text(page)
    data = shared / "data"
    sys.argv = [
        "rolecall", "train", "team.yaml", f"algorithm={algorithm}",
        f"environment.train={data}/gsm8k_train_1000.jsonl",
        f"environment.test=[{data}/math_500.json,{data}/aime_2025.json]",
        "team.solver.sampling.max_tokens=8", "team.verifier.sampling.max_tokens=8",
        "team.verifier.invalid_penalty=0.1",  # random weights earn nothing else
        "rollout.groups=2", "rollout.group_size=2", "trainer.steps=2",
        "evaluation.tasks=2", "evaluation.samples=2", "evaluation.k=2", "--output", "run",
    ]  # fmt: skip
    cli.main()
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["steps"] == 2
    assert set(summary["after"]["by_source"]) == {"math_500", "aime_2025"}
    assert (tmp_path / "run/checkpoints/step-2/big/adapter_model.safetensors").is_file()
    assert (tmp_path / "run/checkpoints/step-2/small/model.safetensors").is_file()
