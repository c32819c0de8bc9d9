"""Measures how fast CoMLRL's MAGRPOTrainer does the same steps of a team.

A call of `train` is one epoch over the prompts of one step: each agent samples one prompt's answers
at a time, and its optimizer makes one step when all prompts are in its buffer. Evaluations are off;
sampling is from the whole distribution, as on our side.
"""

from __future__ import annotations

import time
from pathlib import Path

import torch
from comlrl.trainers.reinforce.magrpo import MAGRPOConfig, MAGRPOTrainer
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer

from rolecall_lab.bench import Measure, Measured
from rolecall_lab.bench.grpo_step import LEARNING_RATE, StepSize, prompts
from rolecall_lab.bench.small_models import random_model
from rolecall_lab.bench.team_step import AGENTS, joint_reward


def set_up(size: StepSize, folder: Path) -> Measure:
    base = random_model(folder, size.model)
    tokenizer = AutoTokenizer.from_pretrained(base)
    texts = prompts(size.prompt)
    counts: list[int] = []  # sampled tokens of each joint answer

    def pay(first: list[str], second: list[str]) -> list[float]:
        pairs = [(_ids(one), _ids(other)) for one, other in zip(first, second, strict=True)]
        counts.extend(len(one) + len(other) for one, other in pairs)
        return [joint_reward(pair) for pair in pairs]

    trainer = MAGRPOTrainer(
        agents=[
            AutoModelForCausalLM.from_pretrained(base, dtype=getattr(torch, size.dtype))
            for _ in AGENTS
        ],
        num_agents=len(AGENTS),
        tokenizer=tokenizer,
        reward_func=pay,
        formatters=lambda item: item["prompt"],
        args=MAGRPOConfig(
            num_train_epochs=1,
            agent_learning_rate=LEARNING_RATE,
            num_agents=len(AGENTS),
            num_generations=size.samples,
            max_new_tokens=size.completion,
            temperature=1.0,
            top_p=1.0,
            top_k=0,
            num_turns=1,
            eval_interval=0,
            rollout_buffer_size=size.tasks,
            train_batch_size=size.tasks,
        ),
    )

    def measure(run: int) -> Measured:
        first = run * size.tasks % (len(texts) - size.tasks)
        trainer.train_dataset = Dataset.from_dict({"prompt": texts[first : first + size.tasks]})
        counts.clear()
        started = time.perf_counter()
        trainer.train()
        took = time.perf_counter() - started
        return Measured(1.0 / took, {"trained tokens": sum(counts)})

    return measure


def _ids(text: str) -> list[int]:
    return [int(word) for word in text.split()]
