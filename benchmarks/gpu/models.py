"""Makes the models and turns that the checks share."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from benchmarks.gpu.checks import Machine
from rolecall.config.schema import Adapter
from rolecall.core.interfaces.engine import Completion, Request, Sampling
from rolecall.core.types import Turn
from rolecall.engines.local.engine import LocalEngine
from rolecall.models.language_model import LanguageModel
from rolecall.models.loading import load_model, load_tokenizer, with_adapters
from rolecall.runtime.call_tree import IdleBarrier
from rolecall_lab.bench.small_models import SIZES, random_model, vocabulary

LARGE = "l"  # the shape of Qwen3-0.6B


def load(
    machine: Machine, folder: Path, *, dtype: torch.dtype, device: torch.device | None = None
) -> LanguageModel:
    """Return the model of a folder, on the GPU unless another device is named."""
    base = load_model(str(folder), device=device or machine.device, dtype=dtype)
    return LanguageModel(base, load_tokenizer(str(folder)))


def load_adapters(
    machine: Machine, folder: Path, names: list[str], *, dtype: torch.dtype, rank: int = 8
) -> dict[str, LanguageModel]:
    """Return policies that each train an adapter on all linear layers of one base."""
    base = load_model(str(folder), device=machine.device, dtype=dtype)
    adapter = Adapter(rank=rank, alpha=2 * rank, targets="all-linear")
    tokenizer = load_tokenizer(str(folder))
    return with_adapters(base, tokenizer, dict.fromkeys(names, adapter), seed=0)


def large_model(machine: Machine) -> tuple[Path, str]:
    """Return the folder and the size of the model that is benchmarked: tiny in a dry run."""
    size = "xs" if machine.is_dry else LARGE
    return random_model(machine.scratch, size), size


def count_parameters(size: str) -> int:
    """Return the weights of a size's layers and of its head, which a token is multiplied with."""
    shape = SIZES[size]
    width, head = shape["hidden_size"], shape["head_dim"]
    attention = width * head * (2 * shape["num_attention_heads"] + 2 * shape["num_key_value_heads"])
    layer = attention + 3 * width * shape["intermediate_size"]
    return shape["num_hidden_layers"] * layer + vocabulary(size) * width


def make_engine(models: dict[str, LanguageModel], *, cache_gb: float) -> LocalEngine:
    return LocalEngine(models, barrier=IdleBarrier(), cache_gb=cache_gb)


async def sample(
    engine: LocalEngine, policy: str, prompt: np.ndarray, *, tokens: int, number: int, seed: int = 0
) -> list[Completion]:
    """Return this number of answers to one prompt."""
    sampling = Sampling(max_tokens=tokens)
    name = f"{policy}-{seed}"
    request = Request(name, policy, prompt, sampling, seed, (name, 0, (0,)), n=number)
    return await engine.generate(request)


def make_turns(
    number: int, *, prompt: int, tokens: int, vocabulary: int, shared: int = 1, seed: int = 0
) -> list[Turn]:
    """Return turns of random tokens; this many in a row share a prompt."""
    draw = np.random.default_rng(seed)
    turns = []
    for index in range(number):
        if index % shared == 0:
            ids = draw.integers(3, vocabulary, prompt, dtype=np.int32)
        sampled = draw.integers(3, vocabulary, tokens, dtype=np.int32)
        turn = Turn(
            id=f"e{index}/0", task="x", episode=f"e{index}", agent="solver", policy="p", path=(0,),
            prompt=ids, tokens=sampled,
            logprobs=np.full(tokens, -float(np.log(vocabulary)), dtype=np.float32),
            versions=np.zeros(tokens, dtype=np.int32), finish="stop",
        )  # fmt: skip
        turn.advantages = np.full(tokens, draw.normal(), dtype=np.float32)
        turns.append(turn)
    return turns
