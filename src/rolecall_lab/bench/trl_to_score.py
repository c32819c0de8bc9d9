"""Measures the seconds in which TRL's GRPOTrainer reaches the same score."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from trl import GRPOTrainer

from rolecall.environments.math.generated import Generated
from rolecall.grading.math.answers import extract
from rolecall_lab.bench import Measure, Measured
from rolecall_lab.bench.math_to_score import (
    KINDS,
    LEARNING_RATE,
    LEVEL,
    MOST_STEPS,
    SYSTEM,
    Goal,
    Progress,
    warm_base,
)
from rolecall_lab.bench.trl_step import grpo_config


class Until(TrainerCallback):
    """Ends the training at the score, and knows how many seconds it took."""

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.rewards: list[float] = []
        self.started = self.took = 0.0

    def score(self, completions: list[Any], answer: list[str], **_: object) -> list[float]:
        """Return 1 for each right box; the rewards of a step are kept."""
        texts = [completion[0]["content"] for completion in completions]
        self.rewards = [
            float(extract(text) == value) for text, value in zip(texts, answer, strict=True)
        ]
        return self.rewards

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.started = time.perf_counter()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        if self.progress.is_reached(self.rewards):
            self.took = time.perf_counter() - self.started
            control.should_training_stop = True


def set_up(goal: Goal, folder: Path) -> Measure:
    base = warm_base(goal, folder)

    def measure(run: int) -> Measured:
        until = Until(Progress(goal))
        trainer = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32),
            reward_funcs=until.score,
            args=grpo_config(
                folder,
                per_device_train_batch_size=goal.tasks * goal.samples,
                num_generations=goal.samples,
                max_completion_length=goal.max_tokens,
                learning_rate=LEARNING_RATE,
                max_steps=MOST_STEPS,
                seed=run,
            ),
            train_dataset=_rows(goal, seed=run),
            processing_class=AutoTokenizer.from_pretrained(base),
            callbacks=[until],
        )
        trainer.train()
        return Measured(1.0 / until.took, {"attempts": len(until.rewards)})

    return measure


def _rows(goal: Goal, *, seed: int) -> Dataset:
    count = MOST_STEPS * goal.tasks
    tasks = Generated("train", level=LEVEL, kinds=KINDS, seed=seed, size=count)
    rows = [tasks[number] for number in range(count)]
    system = {"role": "system", "content": SYSTEM}
    prompts = [[system, {"role": "user", "content": task.prompt}] for task in rows]
    return Dataset.from_dict({"prompt": prompts, "answer": [task.answer for task in rows]})
