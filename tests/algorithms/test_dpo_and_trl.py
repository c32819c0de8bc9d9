"""DPO on rows of a file, beside TRL's sigmoid DPO loss on the same batch."""

from __future__ import annotations

import asyncio
import json

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from rolecall.agents.agent import Policy
from rolecall.algorithms.dpo import Dpo
from rolecall.config.optimizer import Optimizer
from rolecall.engines.scripted import ScriptedEngine
from rolecall.learners.local import LocalLearner
from rolecall.learners.packing import pack
from rolecall.rollout.offline_data import preferences
from rolecall.training.train_step import annotate
from tests.conftest import make_model
from tests.toy import agent, language_model

ROWS = [
    {"prompt": "2+2?", "chosen": "It is 4.", "rejected": "5"},
    {"prompt": "A letter", "chosen": "c", "rejected": "Which one would you like to have?"},
    {"prompt": "2+2?", "chosen": "4", "rejected": "It is 22, of course."},
]


@pytest.mark.parametrize("budget", [10_000, 120])
def test_loss_and_gradient_agree_with_trl(model_folder, tmp_path, budget):
    other = make_model(tmp_path / "reference", "qwen3", seed=7)
    model, reference = language_model(model_folder), language_model(other)
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    policy = Policy("p", model.tokenizer, ScriptedEngine(model.tokenizer, lambda _: ""))
    groups = preferences(file, {"solver": agent("solver", policy, system="Answer.")})
    turns = [turn for group in groups for episode in group for turn in episode.turns]

    learner = LocalLearner(model, Optimizer(lr=1e-3), total_updates=1, reference=reference)
    asyncio.run(annotate(learner, turns, {"ref_logprobs"}, budget=budget))
    algorithm = Dpo(beta=0.3)
    algorithm.credit([episode for group in groups for episode in group])
    batches = pack(turns, budget=budget, pairs=algorithm.pairs(turns))
    losses = [algorithm.loss(batch, learner.forward(batch)) for batch in batches]
    count = sum(loss.count for loss in losses)
    ours = sum(loss.total for loss in losses) / count
    ours.backward()

    trainer = trl_trainer(model_folder, other, model.tokenizer, tmp_path)
    rows = [
        {
            "prompt_ids": group[0].turns[0].prompt.tolist(),
            "chosen_ids": group[0].turns[0].tokens.tolist(),
            "rejected_ids": group[1].turns[0].tokens.tolist(),
        }
        for group in groups
    ]
    from trl.trainer.dpo_trainer import DataCollatorForPreference  # slow to import

    batch = DataCollatorForPreference(pad_token_id=model.tokenizer.pad_token_id)(rows)
    theirs = trainer.compute_loss(trainer.model, batch)
    theirs.backward()
    assert float(ours.detach()) == pytest.approx(float(theirs.detach()), rel=1e-5)
    assert float(ours.detach()) != pytest.approx(np.log(2), rel=1e-2)
    wanted = dict(trainer.model.named_parameters())
    for name, parameter in model.named_parameters():
        scale = float(wanted[name].grad.abs().max())
        assert torch.allclose(parameter.grad, wanted[name].grad, atol=1e-5 * scale + 1e-8), name


def trl_trainer(folder, reference, tokenizer, output):
    """TRL's DPOTrainer of a model and its reference, on ROWS."""
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    loaded = [AutoModelForCausalLM.from_pretrained(f, dtype="float32") for f in (folder, reference)]
    options = DPOConfig(
        output_dir=str(output / "trl"), beta=0.3, use_cpu=True, report_to=[], bf16=False,
        gradient_checkpointing=False, disable_dropout=True, loss_type=["sigmoid"],
    )  # fmt: skip
    return DPOTrainer(
        loaded[0], loaded[1], options,
        train_dataset=Dataset.from_list(ROWS), processing_class=tokenizer,
    )  # fmt: skip
