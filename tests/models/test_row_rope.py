"""Models whose rows have other rotations beyond a length: each row is computed as if alone."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch
import transformers

from rolecall.config.vllm import VllmEngineConfig
from rolecall.core.errors import ConfigError
from rolecall.core.interfaces.engine import Request, Sampling
from rolecall.engines.local.engine import LocalEngine
from rolecall.engines.vllm.engine_args import plan_launch
from rolecall.learners.forward import LogProbs
from rolecall.learners.packing import pack
from rolecall.models.attention.layouts import Rows
from rolecall.models.language_model import LanguageModel
from rolecall.models.loading import load_model, load_tokenizer
from rolecall.models.skeleton import fill_buffers, make_skeleton
from rolecall.runtime.call_tree import IdleBarrier, task_factory
from tests.families import SIZES, TOKENIZER
from tests.toy import CPU, turn

LIMIT = 40
FACTORS = {"short_factor": [1.0] * 4, "long_factor": [4.0, 5.0, 6.0, 9.0]}
ROPE = {
    "rope_type": "longrope", "rope_theta": 100.0, **FACTORS,
    "original_max_position_embeddings": LIMIT,
}  # fmt: skip


@pytest.fixture(scope="module", params=["phi3", "llama"])
def folder(request, tmp_path_factory):
    """Phi-3, which is computed by its modules, and a Llama, which has a pass of our own."""
    path = tmp_path_factory.mktemp(request.param)
    torch.manual_seed(0)
    options = {**SIZES, "num_key_value_heads": 2, "rope_parameters": dict(ROPE)}
    if request.param == "phi3":
        config = transformers.Phi3Config(**options, original_max_position_embeddings=LIMIT)
        model = transformers.Phi3ForCausalLM(config)
    else:
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**options, head_dim=8))
    model.save_pretrained(path)
    TOKENIZER.save_pretrained(path)
    return path


@pytest.fixture
def model(folder) -> LanguageModel:
    loaded = load_model(str(folder), device=CPU, dtype=torch.float32)
    return LanguageModel(loaded, load_tokenizer(str(folder)))


def ids_of(length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(3, 250, length).astype(np.int32)


def expected(folder, ids: np.ndarray) -> np.ndarray:
    """What transformers says of one row by itself, with its own attention: [N - 1]."""
    plain = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    tokens = torch.from_numpy(ids).long()[None]
    with torch.no_grad():
        found = plain.eval()(tokens).logits[0, :-1].log_softmax(-1)
    return found.gather(-1, tokens[0, 1:, None])[:, 0].numpy()


def test_the_factors_of_this_model_matter(folder):
    """Otherwise nothing below could fail."""
    ids = ids_of(LIMIT + 20)
    apart = expected(folder, ids)[:20] - expected(folder, ids[:21])
    assert np.abs(apart).max() > 0.1


def test_rows_of_both_kinds_in_one_pass_are_what_each_is_alone(folder, model):
    rows = [ids_of(12), ids_of(LIMIT + 20, 1), ids_of(LIMIT, 2), ids_of(LIMIT + 1, 3)]
    layout = Rows([len(row) for row in rows], device=CPU)
    tokens = torch.from_numpy(np.concatenate(rows)).long()
    with torch.no_grad():
        logits = model.logits(
            tokens, layout.position, layout=layout, keep=torch.arange(len(tokens))
        )
    said = logits.log_softmax(-1)
    for row, part in zip(rows, said.split([len(row) for row in rows]), strict=True):
        found = part[:-1].gather(-1, torch.from_numpy(row).long()[1:, None])[:, 0]
        assert found.numpy() == pytest.approx(expected(folder, row), abs=1e-4)


@pytest.mark.parametrize("pairs", [False, True])
def test_the_learner_packs_short_and_long_turns_with_one_prompt(folder, model, pairs):
    prompt = ids_of(20)
    turns = [
        turn(path=(k,), prompt=prompt, tokens=ids_of(length, k + 1), advantage=1.0)
        for k, length in enumerate((5, LIMIT))
    ]
    share = model.shares_prefixes
    for batch in pack(turns, budget=1000, share=share, pairs=[tuple(turns)] if pairs else None):
        with torch.no_grad():
            logprobs, _, _ = LogProbs(model)(batch, entropy=False, hidden=False)
        of = batch.turn[batch.mask > 0]
        for number, name in enumerate(batch.turn_ids):
            [one] = [t for t in turns if t.id == name]
            wanted = expected(folder, np.concatenate(one.ids))[-len(one.tokens) :]
            found = logprobs[torch.from_numpy(of == number)].numpy()
            assert found == pytest.approx(wanted, abs=1e-4)


def sampled(model: LanguageModel, prompts: list[np.ndarray], *, max_tokens: int):
    """Completions of all prompts, sampled side by side."""
    engine = LocalEngine({"p": model}, barrier=IdleBarrier(), deterministic=False, cache_gb=0.02)

    async def main():
        asyncio.get_running_loop().set_task_factory(task_factory)
        requests = [
            Request(
                id=str(k), policy="p", prompt=prompt, seed=k, order=("", k, (k,)), n=1,
                sampling=Sampling(max_tokens=max_tokens), episode=str(k),
            )
            for k, prompt in enumerate(prompts)
        ]  # fmt: skip
        return [found for [found] in await asyncio.gather(*map(engine.generate, requests))]

    return asyncio.run(main())


def test_a_short_row_is_sampled_beside_a_long_one_as_the_learner_reads_it(folder, model):
    """The long prompt begins with the short one, whose pages in the cache it must not read."""
    long = ids_of(LIMIT + 10)
    prompts = [long[:22], long, long[:LIMIT]]
    found = sampled(model, prompts, max_tokens=12)
    for prompt, one in zip(prompts, found, strict=True):
        wanted = expected(folder, np.concatenate([prompt, one.tokens]))[-len(one.tokens) :]
        assert one.logprobs == pytest.approx(wanted, abs=1e-4)


def test_a_row_that_begins_short_ends_where_it_would_become_long(model):
    prompt = ids_of(LIMIT - 3)
    [found] = sampled(model, [prompt], max_tokens=200)
    assert len(prompt) + len(found.tokens) <= LIMIT


@pytest.fixture(scope="module")
def scaled_folder(tmp_path_factory):
    """Ministral 3, whose queries grow with their positions beyond the original context."""
    path = tmp_path_factory.mktemp("ministral3")
    torch.manual_seed(0)
    rope = {
        "rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "beta_fast": 32.0,
        "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 2.0,
        "original_max_position_embeddings": LIMIT,
    }  # fmt: skip
    config = transformers.Ministral3Config(
        **SIZES, num_key_value_heads=2, head_dim=8, rope_parameters=rope, sliding_window=None
    )
    transformers.Ministral3ForCausalLM(config).save_pretrained(path)
    TOKENIZER.save_pretrained(path)
    return path


def test_queries_that_grow_beyond_the_original_context_are_sampled_and_trained_so(scaled_folder):
    loaded = load_model(str(scaled_folder), device=CPU, dtype=torch.float32)
    model = LanguageModel(loaded, load_tokenizer(str(scaled_folder)))
    prompt = ids_of(LIMIT + 20)
    [found] = sampled(model, [prompt], max_tokens=12)
    row = np.concatenate([prompt, found.tokens])
    wanted = expected(scaled_folder, row)
    assert found.logprobs == pytest.approx(wanted[-len(found.tokens) :], abs=1e-4)
    with torch.no_grad():
        learned = model.logprobs(torch.from_numpy(row).long()).numpy()
    assert learned == pytest.approx(wanted, abs=1e-4)


def test_vllm_is_given_the_original_context_where_it_would_compute_all_rows_as_long(folder):
    def context(**options) -> int | None:
        options = VllmEngineConfig(name="vllm", **options)
        made = plan_launch(str(folder), {"p": None}, end_ids=[2], options=options, on_cpu=False)
        return made.arguments["max_model_len"]

    assert context() == LIMIT
    assert context(max_length=30) == 30
    with pytest.raises(ConfigError, match=f"engine.max_length: .*write at most {LIMIT}"):
        context(max_length=LIMIT + 1)


def test_a_model_built_without_weights_for_sharding_rotates_each_row_by_its_length(folder, model):
    skeleton = make_skeleton(str(folder), device=CPU, dtype=torch.float32)
    empty = skeleton.loaded.model
    empty.to_empty(device=CPU)
    fill_buffers(empty, skeleton)
    empty.load_state_dict(model.model.state_dict())
    sharded = LanguageModel(skeleton.loaded, model.tokenizer)
    layout = Rows([20, 60], device=CPU)
    rows = (torch.from_numpy(np.concatenate([ids_of(20), ids_of(60, 1)])).long(), layout.position)
    found, wanted = (
        each.logits(*rows, layout=layout, keep=torch.arange(80)) for each in (sharded, model)
    )
    assert torch.allclose(found, wanted, atol=1e-5)
    assert not sharded.shares_prefixes
