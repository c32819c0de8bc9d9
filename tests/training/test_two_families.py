"""A team of two families with two tokenizers: each policy reads and trains tokens of its own."""

from __future__ import annotations

import asyncio
import json
from importlib.resources import files
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from transformers import AutoModelForCausalLM

from rolecall.config.load import load
from rolecall.models.loading import load_tokenizer
from rolecall.setup.build import build
from rolecall.setup.plan import validate
from rolecall.storage.run_folder import RunFolder
from rolecall.training.trainer import Trainer
from tests import toy
from tests.algorithms.test_every_algorithm import Display
from tests.hub import make_base
from tests.toy import write

pytestmark = pytest.mark.slow

LLAMA = {
    "model_type": "llama", "head_dim": 8, "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}  # fmt: skip
OPENS = {
    "solver": "<|im_start|>assistant\n",
    "verifier": "<|start_header_id|>assistant<|end_header_id|>\n\n",
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    """A Qwen3 for the solver; a Llama for the verifier, in whose tokenizer each text has others."""
    shapes = json.loads((files("rolecall.models") / "known_shapes.json").read_text())
    solver, verifier = (tmp_path_factory.mktemp(name) for name in ("qwen3", "llama"))
    make_base(solver, shapes["Qwen/Qwen3-0.6B"], "qwen3", {})
    make_base(
        verifier, LLAMA, "llama3", {},
        layout="llama3", kind="PreTrainedTokenizerFast", reserved=40, bos="<|begin_of_text|>",
    )  # fmt: skip
    return {"solver": solver, "verifier": verifier}


def config(folders: dict[str, Path]) -> dict:
    return {
        "team": {
            name: {"policy": name, "system": "Think.", "sampling": {"max_tokens": 12}}
            for name in folders
        },
        "policies": {
            name: {"base": str(folder), "optimizer": {"lr": 1e-3}}
            for name, folder in folders.items()
        },
        "workflow": {"name": "solver_verifier", "rounds": 2},
        "environment": f"{toy.__file__}:Letters",
        "algorithm": "drmas",
        "rollout": {"groups": 2, "group_size": 4},
        "trainer": {"steps": 1},
        "evaluation": {"tasks": 0},
        "engine": {"cache_gb": 0.1},
    }


def contains(whole: list[int], part: list[int]) -> bool:
    windows = np.lib.stride_tricks.sliding_window_view(whole, len(part))
    return bool((windows == part).all(1).any())


def says(folder: Path, row: dict) -> np.ndarray:
    """Log-probs of a turn's tokens among those of its tokenizer, by transformers: [T]."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokens = torch.tensor([*row["prompt_token_ids"], *row["token_ids"]])
    with torch.no_grad():
        logits = model(tokens[None]).logits[0, :, : len(load_tokenizer(str(folder)))]
    logprobs = logits.log_softmax(-1)
    found = logprobs[:-1].gather(-1, tokens[1:, None])[:, 0]
    return found[-len(row["token_ids"]) :].numpy()


def test_each_policy_reads_and_trains_tokens_of_its_own_tokenizer(folders, tmp_path):
    run = build(validate(load(write(tmp_path / "team.yaml", config(folders)))))
    begun = {
        name: {key: weight.clone() for key, weight in learner.model.weights().items()}
        for name, learner in run.learners.items()
    }
    folder = RunFolder(tmp_path / "run")
    folder.start(run.config)
    asyncio.run(Trainer(run, folder, display=Display()).train())
    folder.release()
    tokenizers = {name: load_tokenizer(str(place)) for name, place in folders.items()}
    assert tokenizers["solver"].encode("4") != tokenizers["verifier"].encode("4")

    [file] = (tmp_path / "run/episodes").glob("*.parquet")
    rows = pq.read_table(file).to_pylist()
    assert len(rows) == 2 * 4 * 3
    others = 0  # whose text would become other tokens, were it tokenised again
    for row in rows:
        tokenizer, place = tokenizers[row["agent"]], folders[row["agent"]]
        assert tokenizer.decode(row["prompt_token_ids"]).endswith(OPENS[row["agent"]])
        assert np.allclose(row["logprobs"], says(place, row), atol=1e-4)
        others += tokenizer.encode(row["text"], add_special_tokens=False) != row["token_ids"]
    assert others > len(rows) / 2
    for episode in {row["episode"] for row in rows}:
        mine = sorted((r for r in rows if r["episode"] == episode), key=lambda row: row["index"])
        first, verdict, second = mine
        assert [row["agent"] for row in mine] == ["solver", "verifier", "solver"]
        assert contains(second["prompt_token_ids"], first["token_ids"]), "its own, as sampled"
        assert "[solver]" in tokenizers["verifier"].decode(verdict["prompt_token_ids"])
        assert "[verifier]" in tokenizers["solver"].decode(second["prompt_token_ids"])

    [step] = [record for record in folder.read_metrics() if record["kind"] == "step"]
    for name, learner in run.learners.items():
        assert 0 < step[f"agent/{name}/mismatch_max"] < 1e-4, "trained on what was sampled"
        now = learner.model.weights()
        assert not all(torch.equal(begun[name][key], now[key]) for key in now)
        saved = load_tokenizer(str(tmp_path / "run/checkpoints/step-1" / name))
        assert saved.get_vocab() == tokenizers[name].get_vocab()
