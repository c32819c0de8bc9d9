"""Compares what `rolecall plan` predicts for a CPU with what a run's process then holds at most.

Each shape is two steps of GRPO in a process of its own, set up as a command sets it up. Predicted
is what the verdict of `plan` counts, the allowance for libraries included; measured is the peak of
resident memory since the process began. Run by hand, on Linux:

    python benchmarks/memory.py [SHAPE ...]
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rolecall.agents.team import Team
from rolecall.config.schema import Config
from rolecall.core.interfaces.environment import World
from rolecall.core.types import Task, Turn
from rolecall.memory.check import RESERVED_CPU
from rolecall.memory.estimate import estimate_memory, peaks
from rolecall.runtime.memory import keep_freed_memory
from rolecall.workflows.base import workflow
from rolecall_lab.bench.grpo_step import StepSize
from rolecall_lab.bench.rolecall_step import make_config, measure_steps
from rolecall_lab.bench.small_models import numbers, random_model

SMOLLM2 = "SmolLM2-135M"
# One group fills a batch of 4,096 tokens: a prompt of 512 and 56 answers of 64. An update has two.
PROMPT, COMPLETION, SAMPLES, BATCH = 512, 64, 56, 4096


@dataclass(frozen=True, slots=True)
class Shape:
    """What is trained, and in how large batches."""

    model: str  # a size of rolecall_lab/bench/small_models.py, or SMOLLM2
    rank: int = 0  # of an adapter; 0: all weights
    dtype: str = "float32"
    tokens: int = BATCH  # of a batch
    recomputed: bool = False  # learner.checkpoint_activations
    has_verifier: bool = False  # a second agent of the same policy, which reads the first answer


SHAPES = {
    "m": Shape("m"),
    "m-8192": Shape("m", tokens=2 * BATCH),
    "m-rank8": Shape("m", rank=8),
    "m-rank32": Shape("m", rank=32),
    "m-rank32-8192": Shape("m", rank=32, tokens=2 * BATCH),
    "m-rank32-bfloat16": Shape("m", rank=32, dtype="bfloat16"),
    "m-rank32-recomputed": Shape("m", rank=32, recomputed=True),
    "m-bfloat16": Shape("m", dtype="bfloat16"),
    "smollm2": Shape(SMOLLM2),
    "smollm2-rank8": Shape(SMOLLM2, rank=8),
    "smollm2-rank32": Shape(SMOLLM2, rank=32),
    "smollm2-rank32-verifier": Shape(SMOLLM2, rank=32, has_verifier=True),
}


@workflow
async def answer_and_verify(team: Team, task: Task, world: World) -> Turn:
    answer = await team.solver(task.prompt)
    return await team.verifier(f"{task.prompt} {answer.text}")


def smollm2(folder: Path) -> Path:
    """Write the shape of SmolLM2-135M with random weights."""
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    target = folder / SMOLLM2
    if (target / "tokenizer.json").is_file():
        return target
    model = LlamaForCausalLM(
        LlamaConfig(
            hidden_size=576, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3,
            intermediate_size=1536, vocab_size=49_152, tie_word_embeddings=True,
            max_position_embeddings=8192, bos_token_id=None, eos_token_id=None, pad_token_id=None,
        )
    )  # fmt: skip
    model.generation_config = GenerationConfig()
    model.save_pretrained(target)
    numbers(49_152).save_pretrained(target)
    return target


def config_of(shape: Shape, folder: Path) -> Config:
    base = smollm2(folder) if shape.model == SMOLLM2 else random_model(folder, shape.model)
    step = StepSize(
        shape.model, tasks=2 * shape.tokens // BATCH, samples=SAMPLES, prompt=PROMPT,
        completion=COMPLETION, rank=shape.rank, dtype=shape.dtype,
    )  # fmt: skip
    learner = {"tokens_per_batch": shape.tokens, "checkpoint_activations": shape.recomputed}
    config = make_config(step, base, learner=learner)
    if shape.has_verifier:
        config.team["verifier"] = config.team["solver"].model_copy(deep=True)
        config.workflow.name = f"{__name__}:answer_and_verify"
    return config


def prepare(name: str, folder: Path) -> None:
    """Write the model, and print what is predicted: neither may count in the run's process."""
    needs = estimate_memory(config_of(SHAPES[name], folder))
    [peak] = [peak for peak in peaks(needs) if peak.is_device]
    print(json.dumps({"predicted": peak.num_bytes + RESERVED_CPU, "phase": peak.phase}))


def run(name: str, folder: Path) -> None:
    """Do two steps as a command would."""
    keep_freed_memory()
    measure = measure_steps(config_of(SHAPES[name], folder))
    for number in range(2):
        measure(number)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"measured": peak}))


def compare(name: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        found: dict[str, Any] = {}
        for what in ("prepare", "run"):
            command = [sys.executable, __file__, what, name, folder]
            printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            found |= json.loads(printed.splitlines()[-1])
    return found


def main(names: list[str]) -> None:
    print(f"{'shape':22s} {'predicted GB':>12s} {'measured GB':>12s} {'share':>6s}  phase")
    for name in names or SHAPES:
        found = compare(name)
        predicted, measured = found["predicted"] / 1e9, found["measured"] / 1e9
        share = predicted / measured
        print(f"{name:22s} {predicted:12.2f} {measured:12.2f} {share:6.2f}  {found['phase']}",
              flush=True)  # fmt: skip


if __name__ == "__main__":
    if len(sys.argv) == 4 and sys.argv[1] in ("prepare", "run"):
        {"prepare": prepare, "run": run}[sys.argv[1]](sys.argv[2], Path(sys.argv[3]))
    else:
        main(sys.argv[1:])
