"""Checks what sleep and offload free, and that the predicted memory of a step is what it takes."""

from __future__ import annotations

import asyncio
import gc
from functools import partial

import torch

from benchmarks.gpu.checks import Figures, Machine, add_checks, check
from benchmarks.gpu.models import large_model, load, make_engine, make_turns, sample
from benchmarks.gpu.part_engine import PROMPT
from rolecall.algorithms.grpo import Grpo
from rolecall.config.optimizer import Optimizer
from rolecall.learners.local import LocalLearner
from rolecall.learners.packing import pack
from rolecall.memory.check import RESERVED_GPU
from rolecall.memory.estimate import estimate_memory, peaks
from rolecall_lab.bench.grpo_step import StepSize
from rolecall_lab.bench.rolecall_step import make_config, measure_steps

GB = 1e9
# Name -> rank of an adapter (0: all weights), dtype, keys of the learner.
SHAPES: dict[str, tuple[int, str, dict[str, object]]] = {
    "bfloat16": (0, "bfloat16", {}),
    "bfloat16_recomputed": (0, "bfloat16", {"checkpoint_activations": True}),
    "bfloat16_long": (0, "bfloat16", {"tokens_per_batch": 16384}),
    "bfloat16_offload": (0, "bfloat16", {"offload": True}),
    "float32": (0, "float32", {}),
    "adapter": (16, "bfloat16", {}),
    "adapter_long": (16, "bfloat16", {"tokens_per_batch": 16384}),
    "adapter_recomputed": (16, "bfloat16", {"checkpoint_activations": True}),
}
LARGEST_ERROR = 0.1  # of the predicted memory, as a share of what is measured


def plan_predicts_a_step(machine: Machine, *, shape: str) -> Figures:
    """`rolecall plan` names the peak of a step of GRPO within 10 %, and never too little."""
    machine.require_gpu("the memory of a stand-in is not that of a GPU")
    rank, dtype, learner = SHAPES[shape]
    base, size = large_model(machine)
    # A group fills a batch of 4,096 tokens: 512 and 8 answers of 448.
    step = StepSize(size, tasks=8, samples=8, prompt=512, completion=448, rank=rank, dtype=dtype)
    config = make_config(step, base, learner={"device": "cuda", **learner}, cache_gb=4.0)
    needs = estimate_memory(config, auto="cuda:0")
    predicted = {peak.device: peak.num_bytes for peak in peaks(needs)}["cuda:0"]
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    measure = measure_steps(config)
    for number in range(2):
        measure(number)
    measured = torch.cuda.max_memory_allocated() - before
    figures = {
        "predicted GB": predicted / GB,
        "measured GB": measured / GB,
        "reserved GB": torch.cuda.max_memory_reserved() / GB,
        "share": predicted / measured,
    }
    assert predicted + RESERVED_GPU >= measured, figures  # as the verdict counts it
    assert abs(predicted / measured - 1) <= LARGEST_ERROR, figures
    return figures


add_checks(
    "memory",
    {f"plan_of_{name}": partial(plan_predicts_a_step, shape=name) for name in SHAPES},
)


@check
def sleep_frees_the_cache(machine: Machine) -> Figures:
    """An engine that gives its cache back during updates holds no memory while it sleeps."""
    machine.require_gpu("the stand-in allocates nothing")
    base, _ = large_model(machine)
    model = load(machine, base, dtype=torch.bfloat16)
    engine = make_engine({"p": model}, cache_gb=8.0)
    engine._free_on_update = True
    gc.collect()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    first = asyncio.run(sample(engine, "p", PROMPT, tokens=16, number=4))
    awake = torch.cuda.memory_allocated() - before
    asyncio.run(engine.sleep(weights=True))
    gc.collect()
    torch.cuda.empty_cache()
    asleep = torch.cuda.memory_allocated() - before
    again = asyncio.run(sample(engine, "p", PROMPT, tokens=16, number=4))
    assert awake > 7 * GB, awake
    assert asleep < 0.2 * GB, f"{asleep / GB:.2f} GB are held while the engine sleeps"
    assert [one.tokens.tolist() for one in first] == [one.tokens.tolist() for one in again]
    return {"awake GB": awake / GB, "asleep GB": asleep / GB}


@check
def offload_frees_the_optimizer(machine: Machine) -> Figures:
    """Between updates moments and masters are in the computer's memory, and the update is equal."""
    machine.require_gpu("the stand-in allocates nothing")
    base, _ = large_model(machine)
    turns = make_turns(16, prompt=100, tokens=100, vocabulary=1000, shared=4)
    batches = pack(turns, budget=4096, by_agent=False)
    held, weights = [], []
    for offloads in (False, True):
        gc.collect()
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        learner = LocalLearner(
            load(machine, base, dtype=torch.bfloat16), Optimizer(lr=1e-4), total_updates=4,
            offloads=offloads,
        )  # fmt: skip
        for _ in range(2):
            asyncio.run(_update(learner, batches))
        held.append((torch.cuda.memory_allocated() - before) / GB)
        weights.append(torch.cat([p.detach().cpu().flatten()[:1000] for p in learner.parameters]))
        del learner
    assert torch.equal(*weights)
    assert held[1] < 0.3 * held[0], held
    return {"held GB": held[0], "held with offload GB": held[1]}


async def _update(learner: LocalLearner, batches: list) -> None:
    await learner.load_back()
    await learner.update([batches], Grpo(), per_agent=False)
    await learner.offload()
