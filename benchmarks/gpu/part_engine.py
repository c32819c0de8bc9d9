"""Checks what the embedded engine samples: log-probs, recorded steps, adapters, moved weights."""

from __future__ import annotations

import asyncio
import warnings
from collections import Counter
from functools import partial
from pathlib import Path

import numpy as np
import torch

from benchmarks.gpu.checks import Figures, Machine, add_checks, check
from benchmarks.gpu.models import load, load_adapters, make_engine, sample
from rolecall.core.interfaces.engine import Completion
from rolecall.engines.local.engine import LocalEngine
from rolecall.models.attention.flex_proof import unfit
from rolecall.models.language_model import LanguageModel
from tests.families import TOKENIZER, make

PROMPT = np.arange(40, 75, dtype=np.int32)
ROWS, TOKENS = 6, 40
LARGEST_GAP = 1e-3  # in nats, between what was sampled and what one pass in float32 says
# In bfloat16 both differ from float32 by rounding: the engine by at most this much more than a pass
# of the same model, or by this many nats where that pass happens to round well.
ROUNDING, LEAST_GAP = 3.0, 0.1
FULL = ("Qwen3", "Llama", "Qwen3Moe", "Glm4")
RULED = ("Gemma2", "Mistral", "GptOss", "GraniteSWA")
EXPERTS = ("Qwen3Moe", "GptOss")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def sampled_logprobs_are_those_of_the_model(
    machine: Machine, *, family: str, kind: str, dtype: torch.dtype
) -> Figures:
    """The engine's log-probs are those of one pass over each whole row."""
    if family in EXPERTS:
        machine.require_gpu("transformers' experts count tokens by an operation the stand-in lacks")
    folder = make_family(machine, family, kind)
    model = load(machine, folder, dtype=dtype)
    engine = make_engine({"p": model}, cache_gb=0.01)
    completions = asyncio.run(sample(engine, "p", PROMPT, tokens=TOKENS, number=ROWS))
    reason = unfit("decoding", machine.device)
    assert not reason, reason
    # In float32 transformers multiplies experts one by one, which waits for the device.
    if family not in EXPERTS or dtype != torch.float32:
        recorded = engine._schedulers["p"]._recorded
        assert recorded is not None, "no step was recorded"
        assert not recorded.unfit, recorded.unfit
    if dtype == torch.float32:
        gap = max(_gap(model, one) for one in completions)
        assert gap <= LARGEST_GAP, f"they differ by {gap:.3g} nats"
        return {"largest gap nats": gap}
    model.model.float()  # the same weights, whose passes round less
    exact = [_score(model, one) for one in completions]
    model.model.to(dtype)
    # Rounding may send a token to another expert, which changes a few log-probs by much.
    measure = np.median if family in EXPERTS else np.max
    passes = [_score(model, one) for one in completions]
    gap, rounding = (
        float(measure(np.abs(np.concatenate(ours) - np.concatenate(exact))))
        for ours in ([one.logprobs for one in completions], passes)
    )
    largest = max(LEAST_GAP, ROUNDING * rounding)
    assert gap <= largest, f"{gap:.3g} nats from float32; a pass in bfloat16 is {rounding:.3g} off"
    return {"gap to float32 nats": gap, "of a pass nats": rounding}


add_checks(
    "engine",
    {
        f"logprobs_{family}_{name}": partial(
            sampled_logprobs_are_those_of_the_model, family=family, kind=kind, dtype=dtype
        )
        for kind, families in (("full", FULL), ("ruled", RULED))
        for family in families
        for name, dtype in DTYPES.items()
    },
)


@check
def greedy_answers_are_those_of_the_cpu(machine: Machine) -> Figures:
    """In float32 the most likely tokens of a random model are the same on both devices."""
    folder = _qwen3(machine)
    logits = []
    ids = np.concatenate([PROMPT, PROMPT[::-1]])
    for device in (machine.device, torch.device("cpu")):
        model = load(machine, folder, dtype=torch.float32, device=device)
        with torch.no_grad():
            logits.append(model.logprobs(torch.from_numpy(ids).long().to(device)).cpu())
    difference = float((logits[0] - logits[1]).abs().max())
    assert difference <= 1e-3, difference
    return {"largest difference nats": difference}


@check
def the_same_seed_gives_the_same_bits(machine: Machine) -> None:
    """Two engines over one model sample the same tokens with the same log-probs."""
    model = load(machine, _qwen3(machine), dtype=torch.bfloat16)
    first, second = (_sample_all({"p": model}, ["p"]) for _ in range(2))
    for one, other in zip(first, second, strict=True):
        assert one.tokens.tolist() == other.tokens.tolist()
        assert one.logprobs.tobytes() == other.logprobs.tobytes()


@check
def unrecorded_steps_sample_the_same(machine: Machine) -> Figures:
    """A step that is replayed as a graph computes what the same step computes without it."""
    model = load(machine, _qwen3(machine), dtype=torch.float32)
    recorded = make_engine({"p": model}, cache_gb=0.01)
    plain = make_engine({"p": model}, cache_gb=0.01)
    plain._schedulers["p"].records = False
    both = [
        asyncio.run(sample(engine, "p", PROMPT, tokens=TOKENS, number=ROWS))
        for engine in (recorded, plain)
    ]
    assert recorded._schedulers["p"]._recorded is not None
    gaps = []
    for one, other in zip(*both, strict=True):
        assert one.tokens.tolist() == other.tokens.tolist()
        gaps.append(float(np.abs(one.logprobs - other.logprobs).max()))
    return {"largest gap nats": max(gaps)}


@check
def adapters_of_one_base_share_a_batch(machine: Machine) -> Figures:
    """Rows of two adapters in one batch get the log-probs of their own adapter."""
    models = load_adapters(machine, _qwen3(machine), ["a", "b"], dtype=torch.float32)
    torch.manual_seed(1)
    for model in models.values():
        for _, parameter in model.named_parameters():
            parameter.data += 0.05 * torch.randn(parameter.shape).to(parameter.device)
    completions = _sample_all(models, ["a", "b"])
    gaps = [
        _gap(models[name], one)
        for name, own in zip(("a", "b"), (completions[:ROWS], completions[ROWS:]), strict=True)
        for one in own
    ]
    other = _gap(models["b"], completions[0])
    assert max(gaps) <= LARGEST_GAP, f"they differ by {max(gaps):.3g} nats"
    assert other > 10 * max(gaps), "both adapters say the same: the check shows nothing"
    return {"largest gap nats": max(gaps), "gap to the other adapter": other}


@check
def a_step_waits_for_the_device_once(machine: Machine) -> Figures:
    """Each further step waits for the GPU once: to read the sampled tokens."""
    machine.require_gpu("a stand-in's waits are counted by tests/training/test_gpu_path.py")
    model = load(machine, _qwen3(machine), dtype=torch.bfloat16)
    engine = make_engine({"p": model}, cache_gb=0.01)
    asyncio.run(sample(engine, "p", PROMPT, tokens=2 * TOKENS, number=ROWS))  # records the steps
    few, many = (_count_waits(engine, tokens=tokens) for tokens in (TOKENS, 2 * TOKENS))
    further = many - few
    share = further.total() / TOKENS
    assert share <= 1.1, f"{share:.2f} waits a step: {dict(further)}"
    return {"waits a step": share, "waits to begin and end": few.total() - TOKENS}


def _count_waits(engine: LocalEngine, *, tokens: int) -> Counter[str]:
    """Return how often each line of code waits for the device while rows are sampled."""
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as waits:
            warnings.simplefilter("always")
            asyncio.run(sample(engine, "p", PROMPT, tokens=tokens, number=ROWS, seed=1))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return Counter(
        f"{Path(one.filename).name}:{one.lineno}"
        for one in waits
        if "synchroniz" in str(one.message)
    )


@check
def weights_that_move_reach_the_next_row(machine: Machine) -> Figures:
    """After a publication the engine samples from the new weights, without recording again."""
    model = load(machine, _qwen3(machine), dtype=torch.float32)
    engine = make_engine({"p": model}, cache_gb=0.01)
    asyncio.run(sample(engine, "p", PROMPT, tokens=TOKENS, number=ROWS))
    with torch.no_grad():
        for _, parameter in model.named_parameters():
            parameter *= 1.1
    engine.load("p", 1, None)
    completions = asyncio.run(sample(engine, "p", PROMPT, tokens=TOKENS, number=ROWS, seed=1))
    gap = max(_gap(model, one) for one in completions)
    assert gap <= LARGEST_GAP, f"they differ by {gap:.3g} nats"
    assert all((one.versions == 1).all() for one in completions)
    return {"largest gap nats": gap}


def _sample_all(models: dict[str, LanguageModel], policies: list[str]) -> list[Completion]:
    engine: LocalEngine = make_engine(models, cache_gb=0.01)

    async def all_of_them() -> list[list[Completion]]:
        return await asyncio.gather(
            *(sample(engine, name, PROMPT, tokens=TOKENS, number=ROWS) for name in policies)
        )

    return [one for group in asyncio.run(all_of_them()) for one in group]


def _gap(model: LanguageModel, completion: Completion) -> float:
    """Return the largest difference to the log-probs of one pass of the model, in nats."""
    return _apart(completion.logprobs, _score(model, completion))


def _score(model: LanguageModel, completion: Completion) -> np.ndarray:
    """Return the log-probs of the sampled tokens by one pass of the model."""
    ids = torch.from_numpy(np.concatenate([PROMPT, completion.tokens])).long().to(model.device)
    with torch.no_grad(), model.using():
        return model.logprobs(ids)[len(PROMPT) - 1 :].cpu().numpy()


def _apart(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.abs(one - other).max())


def _qwen3(machine: Machine) -> Path:
    return make_family(machine, "Qwen3", "full")


def make_family(machine: Machine, family: str, kind: str) -> Path:
    """Return the folder of a small random model; kernels need heads of at least 16 numbers."""
    folder = machine.scratch / f"{kind}-{family}"
    if not (folder / "tokenizer.json").is_file():
        make(folder, kind, family, hidden_size=128, head_dim=32, initializer_range=0.1)
        TOKENIZER.save_pretrained(folder)
    return folder
