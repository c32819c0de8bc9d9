"""DPO and SFT on rows of a file, beside TRL's losses on the same batch."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from rolecall.agents.agent import Policy
from rolecall.algorithms.dpo import Dpo
from rolecall.algorithms.sft import Sft
from rolecall.config.optimizer import Optimizer
from rolecall.demonstrations.offline_data import demonstrations, preferences
from rolecall.engines.scripted import ScriptedEngine
from rolecall.learners.local import LocalLearner
from rolecall.learners.packing import pack
from rolecall.training.train_step import annotate
from tests.conftest import make_model
from tests.toy import agent, language_model

ROWS = [
    {"prompt": "2+2?", "chosen": "It is 4.", "rejected": "5"},
    {"prompt": "A letter", "chosen": "c", "rejected": "Which one would you like to have?"},
    {"prompt": "2+2?", "chosen": "4", "rejected": "It is 22, of course."},
]


def groups_of(model, tmp_path, rows, read):
    """The groups of a file with these rows, whose words are a solver's."""
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    policy = Policy("p", model.tokenizer, ScriptedEngine(model.tokenizer, lambda _: ""))
    return read(file, {"solver": agent("solver", policy, system="Answer.")})


def loss_of(algorithm, groups, learner, *, budget=10_000):
    """The mean loss of all groups in one optimizer step."""
    turns = [turn for group in groups for episode in group for turn in episode.turns]
    if algorithm.needs_reference:
        asyncio.run(annotate(learner, turns, {"ref_logprobs"}, budget=budget))
    algorithm.credit([episode for group in groups for episode in group])
    pairs = algorithm.pairs(turns) if algorithm.keep_together else None
    batches = pack(turns, budget=budget, skip_zero=algorithm.skips_zero, pairs=pairs)
    losses = [algorithm.loss(batch, learner.forward(batch)) for batch in batches]
    return sum(loss.total for loss in losses) / sum(loss.count for loss in losses)


def agree(model, wanted):
    """Every gradient is that of TRL's model."""
    theirs = dict(wanted.named_parameters())
    for name, parameter in model.named_parameters():
        scale = float(theirs[name].grad.abs().max())
        assert torch.allclose(parameter.grad, theirs[name].grad, atol=1e-5 * scale + 1e-8), name


TRL_NAMES = {"sppo": "sppo_hard"}


@pytest.mark.parametrize("loss_type", ["sigmoid", "ipo", "hinge", "sppo"])
@pytest.mark.parametrize("budget", [10_000, 120])
def test_loss_and_gradient_agree_with_trl(model_folder, tmp_path, budget, loss_type):
    other = make_model(tmp_path / "reference", "qwen3", seed=7)
    model, reference = language_model(model_folder), language_model(other)
    groups = groups_of(model, tmp_path, ROWS, preferences)
    learner = LocalLearner(model, Optimizer(lr=1e-3), total_updates=1, reference=reference)
    ours = loss_of(Dpo(beta=0.3, loss_type=loss_type), groups, learner, budget=budget)
    ours.backward()

    name = TRL_NAMES.get(loss_type, loss_type)
    trainer = trl_trainer(model_folder, other, model.tokenizer, tmp_path, loss_type=name)
    theirs = trainer.compute_loss(trainer.model, trl_batch(groups, model.tokenizer))
    theirs.backward()
    assert float(ours.detach()) == pytest.approx(float(theirs.detach()), rel=1e-5)
    assert float(ours.detach()) != pytest.approx(np.log(2), rel=1e-2)
    agree(model, trainer.model)


def test_smoothing_agrees_with_trl(model_folder, tmp_path):
    """Its `aot` is the smoothed sigmoid loss where a batch has one pair, and nothing to sort."""
    other = make_model(tmp_path / "reference", "qwen3", seed=7)
    model, reference = language_model(model_folder), language_model(other)
    groups = groups_of(model, tmp_path, ROWS, preferences)
    learner = LocalLearner(model, Optimizer(lr=1e-3), total_updates=1, reference=reference)
    trainer = trl_trainer(
        model_folder, other, model.tokenizer, tmp_path, loss_type="aot", label_smoothing=0.2
    )
    for group in groups:
        ours = float(loss_of(Dpo(beta=0.3, smoothing=0.2), [group], learner).detach())
        theirs = trainer.compute_loss(trainer.model, trl_batch([group], model.tokenizer))
        assert ours == pytest.approx(float(theirs.detach()), rel=1e-5)
        assert ours != pytest.approx(
            float(loss_of(Dpo(beta=0.3), [group], learner).detach()), rel=1e-3
        )


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_without_a_reference_it_agrees_with_trls_cpo(model_folder, tmp_path, smoothing):
    """CPO's preference loss is that of DPO whose reference finds all answers equally likely."""
    from trl.experimental.cpo.cpo_trainer import CPOTrainer

    model = language_model(model_folder)
    groups = groups_of(model, tmp_path, ROWS, preferences)
    learner = LocalLearner(model, Optimizer(lr=1e-3), total_updates=1)
    ours = loss_of(Dpo(beta=0.3, reference_free=True, smoothing=smoothing), groups, learner)

    plain = AutoModelForCausalLM.from_pretrained(model_folder, dtype="float32")
    sides = [
        torch.stack([summed(plain, group[side].turns[0]) for group in groups]) for side in (0, 1)
    ]
    given = SimpleNamespace(
        alpha=0.0, beta=0.3, loss_type="sigmoid", label_smoothing=smoothing,
        accelerator=SimpleNamespace(device="cpu"),
    )  # fmt: skip
    theirs = CPOTrainer.cpo_loss(given, *sides)[0].mean()
    assert float(ours.detach()) == pytest.approx(float(theirs.detach()), rel=1e-5)


def summed(model, turn):
    """The log-prob of a whole turn."""
    ids = torch.from_numpy(np.concatenate([turn.prompt, turn.tokens])).long()
    logprobs = model(input_ids=ids[None]).logits[0, :-1].log_softmax(-1)
    return logprobs.gather(-1, ids[1:, None])[len(turn.prompt) - 1 :, 0].sum()


def test_sft_agrees_with_trl(model_folder, tmp_path):
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    model = language_model(model_folder)
    rows = [{"prompt": row["prompt"], "completion": row["rejected"]} for row in ROWS]
    groups = groups_of(model, tmp_path, rows, demonstrations)
    learner = LocalLearner(model, Optimizer(lr=1e-3), total_updates=1)
    ours = loss_of(Sft(), groups, learner)
    ours.backward()

    turns = [group[0].turns[0] for group in groups]
    examples = [
        {
            "input_ids": [*turn.prompt.tolist(), *turn.tokens.tolist()],
            "labels": [-100] * len(turn.prompt) + turn.tokens.tolist(),
        }
        for turn in turns
    ]
    options = SFTConfig(
        output_dir=str(tmp_path / "trl"), use_cpu=True, report_to=[], bf16=False,
        gradient_checkpointing=False,
    )  # fmt: skip
    trainer = SFTTrainer(
        AutoModelForCausalLM.from_pretrained(model_folder, dtype="float32"), options,
        train_dataset=Dataset.from_list(examples), processing_class=model.tokenizer,
    )  # fmt: skip
    batch = DataCollatorForLanguageModeling(pad_token_id=model.tokenizer.pad_token_id)(examples)
    theirs = trainer.compute_loss(trainer.model, batch)
    theirs.backward()
    assert float(ours.detach()) == pytest.approx(float(theirs.detach()), rel=1e-5)
    agree(model, trainer.model)


def trl_batch(groups, tokenizer):
    """The same tokens, padded as TRL pads them."""
    from trl.trainer.dpo_trainer import DataCollatorForPreference  # slow to import

    rows = [
        {
            "prompt_ids": group[0].turns[0].prompt.tolist(),
            "chosen_ids": group[0].turns[0].tokens.tolist(),
            "rejected_ids": group[1].turns[0].tokens.tolist(),
        }
        for group in groups
    ]
    return DataCollatorForPreference(pad_token_id=tokenizer.pad_token_id)(rows)


def trl_trainer(folder, reference, tokenizer, output, *, loss_type, label_smoothing=0.0):
    """TRL's DPOTrainer of a model and its reference, on ROWS."""
    from datasets import Dataset
    from trl import DPOConfig, DPOTrainer

    loaded = [AutoModelForCausalLM.from_pretrained(f, dtype="float32") for f in (folder, reference)]
    options = DPOConfig(
        output_dir=str(output / "trl"), beta=0.3, use_cpu=True, report_to=[], bf16=False,
        gradient_checkpointing=False, disable_dropout=True, loss_type=[loss_type],
        label_smoothing=label_smoothing,
    )  # fmt: skip
    return DPOTrainer(
        loaded[0], loaded[1], options,
        train_dataset=Dataset.from_list(ROWS), processing_class=tokenizer,
    )  # fmt: skip
