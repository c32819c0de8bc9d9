"""The README's team.yaml as it stands, on tiny random models of the families it names."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml

from tests.docs.test_readme import blocks
from tests.toy import command

pytestmark = pytest.mark.slow


@pytest.mark.evidence
def test_the_page_trains_any_family_with_full_weights_and_an_adapter(
    any_model_folder, shared, tmp_path, monkeypatch
):
    _train_the_page(any_model_folder, shared, tmp_path, monkeypatch)


@pytest.mark.evidence
def test_the_page_trains_with_full_weights_and_an_adapter(
    model_folder, shared, tmp_path, monkeypatch
):
    _train_the_page(model_folder, shared, tmp_path, monkeypatch)


def _train_the_page(base, shared, tmp_path, monkeypatch):
    (page,) = blocks("yaml")
    monkeypatch.chdir(tmp_path)
    for name in ("Qwen3-0.6B", "Qwen3-4B"):
        shutil.copytree(base, tmp_path / "Qwen" / name)  # found before any hub
    config = yaml.safe_load(page)
    # Random weights solve nothing, so they also earn something that they can.
    config["rewards"][f"{(Path(__file__).parents[1] / 'toy.py')}:wordy"] = 1.0
    (tmp_path / "team.yaml").write_text(yaml.safe_dump(config))
    data = shared / "data"
    status = command(
        "train", "team.yaml",
        f"environment.train={data}/gsm8k_train_1000.jsonl",
        f"environment.test=[{data}/math_500.json,{data}/aime_2025.json]",
        "team.solver.sampling.max_tokens=8", "team.verifier.sampling.max_tokens=8",
        "rollout.groups=2", "rollout.group_size=2", "trainer.steps=2",
        "evaluation.tasks=2", "evaluation.samples=2", "evaluation.k=2", "--output", "run",
    )  # fmt: skip
    assert status == 0
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["steps"] == 2
    assert all(agent["grad_norm_max"] > 0 for agent in summary["agents"].values())
    assert len(summary["after"]["by_source"]) == 2
    assert (tmp_path / "run/checkpoints/step-2/big/adapter_model.safetensors").is_file()
    assert (tmp_path / "run/checkpoints/step-2/small/model.safetensors").is_file()
