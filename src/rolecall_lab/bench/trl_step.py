"""Measures how fast TRL's GRPOTrainer does the same steps.

The trainer runs in a thread of its own and stands still between the steps that are asked for. Its
settings are its defaults, less what would only cost it time here: gradient checkpointing, logs,
checkpoints, a reference.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from queue import Queue
from typing import Any

import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from rolecall_lab.bench import Measure, Measured
from rolecall_lab.bench.grpo_step import LEARNING_RATE, STEPS, StepSize, prompts, reward
from rolecall_lab.bench.small_models import random_model

LARGEST_BATCH_IDS = 32_768  # in one forward pass; more would not fit into a small machine


class Turnstile(TrainerCallback):
    """Lets one optimizer step through for each `go`, and says how many seconds it took."""

    def __init__(self) -> None:
        self.go: Queue[None] = Queue()
        self.done: Queue[float | Exception] = Queue()
        self.started = 0.0

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.go.get()
        self.started = time.perf_counter()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.done.put(time.perf_counter() - self.started)


def set_up(size: StepSize, folder: Path) -> Measure:
    base = random_model(folder, size.model)
    turnstile = Turnstile()
    counts: list[int] = []  # sampled tokens of each step

    def reward_lengths(completion_ids: list[list[int]], **_: object) -> list[float]:
        counts.append(sum(map(len, completion_ids)))
        return [reward(ids) for ids in completion_ids]

    texts = prompts(size.prompt)
    tokenizer = AutoTokenizer.from_pretrained(base)
    assert len(tokenizer(texts[0])["input_ids"]) == size.prompt, "a word is a token"
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(base, dtype=getattr(torch, size.dtype)),
        reward_funcs=reward_lengths,
        args=_config(size, folder),
        train_dataset=Dataset.from_dict({"prompt": texts}),
        processing_class=tokenizer,
        callbacks=[turnstile],
        peft_config=_adapter(size),
    )

    def train() -> None:
        try:
            trainer.train()
        except Exception as error:  # the boundary to TRL: whoever waits must learn of it
            turnstile.done.put(error)

    threading.Thread(target=train, daemon=True).start()

    def measure(run: int) -> Measured:
        turnstile.go.put(None)
        took = turnstile.done.get()
        if isinstance(took, Exception):
            raise took
        return Measured(1.0 / took, {"trained tokens": counts[-1]})

    return measure


def _adapter(size: StepSize) -> LoraConfig | None:
    if not size.rank:
        return None
    return LoraConfig(
        r=size.rank, lora_alpha=2 * size.rank, target_modules="all-linear", task_type="CAUSAL_LM"
    )


def _config(size: StepSize, folder: Path) -> GRPOConfig:
    rows = size.tasks * size.samples
    parts = 1
    while rows * (size.prompt + size.completion) > LARGEST_BATCH_IDS * parts:
        parts *= 2
    return grpo_config(
        folder,
        per_device_train_batch_size=rows // parts,
        gradient_accumulation_steps=parts,
        num_generations=size.samples,
        max_completion_length=size.completion,
        learning_rate=LEARNING_RATE,
        max_steps=STEPS,
        seed=0,
    )


def grpo_config(folder: Path, **options: Any) -> GRPOConfig:
    """Return TRL's defaults less what would only cost it time here, with these options."""
    return GRPOConfig(
        output_dir=str(folder / "trl"),
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        temperature=1.0,
        beta=0.0,
        loss_type="grpo",
        lr_scheduler_type="constant",
        logging_strategy="no",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        **options,
    )
