"""Families of transformers: what is trained and sampled is what their own attention computes."""

from __future__ import annotations

import asyncio
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from rolecall.config.optimizer import Optimizer
from rolecall.config.schema import Adapter
from rolecall.core.interfaces.engine import Request, Sampling
from rolecall.core.types import Turn
from rolecall.engines.local.engine import LocalEngine
from rolecall.learners.activations import recompute_activations
from rolecall.learners.local import LocalLearner
from rolecall.learners.packing import join, pack
from rolecall.models.attention.score_rule import ScoreRule
from rolecall.models.language_model import LanguageModel
from rolecall.models.loading import load_model, with_adapters
from rolecall.runtime.call_tree import IdleBarrier
from tests.families import APART, CASES, FULL, RULED, TOKENIZER, loaded, make
from tests.support.evidence import leave_to_evidence
from tests.toy import CPU, turn

pytestmark = pytest.mark.slow

HERE = [case for case in CASES if case[0] != "apart"]
# The most used, and one of each kind of layer.
USUAL = {
    "BioGpt", "Bloom", "FalconH1", "GPT2", "Gemma2", "Gemma3Text", "GptOss", "Lfm2", "Llama",
    "Mistral", "Mixtral", "Phi3", "Qwen2", "Qwen3", "Qwen3Moe", "Qwen3Next", "Qwen3_5Text",
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory, request):
    return make(tmp_path_factory.mktemp("family"), *request.param)


def families(cases):
    rows = leave_to_evidence(cases, keep=[case for case in cases if case[1] in USUAL])
    return pytest.mark.parametrize("folder", rows, ids=map("-".join, cases), indirect=True)


def conversation() -> list[Turn]:
    """Two groups of three answers to a prompt; one answer of each is spoken to again."""
    random = np.random.default_rng(0)

    def ids(number: int) -> np.ndarray:
        return random.integers(10, 290, number)

    turns = []
    for group in range(2):
        prompt = ids(20 + 3 * group)
        for member in range(3):
            place = {"episode": f"e{group}.{member}", "task": f"x{group}"}
            first = turn(prompt=prompt, tokens=ids(3 + 2 * member), **place)
            turns.append(first)
            if member == 1:
                longer = np.concatenate([*first.ids, ids(5)])
                turns.append(turn(prompt=longer, tokens=ids(6), path=(1,), **place))
    return turns


def in_trees(model: LanguageModel, turns: list[Turn]) -> dict[str, torch.Tensor]:
    """Log-probs of all turns in one packed row."""
    learner = LocalLearner(model, Optimizer(lr=1e-3), total_updates=1)
    [batch] = pack(turns, budget=10_000)
    assert len(batch.tokens) < 0.75 * sum(len(ids) for each in turns for ids in each.ids)
    logprobs = learner.forward(batch).logprobs
    owner = torch.from_numpy(np.where(batch.mask > 0, batch.turn, -1))
    return {name: logprobs[owner == number] for number, name in enumerate(batch.turn_ids)}


def one_by_one(network, turns: list[Turn]) -> dict[str, torch.Tensor]:
    """The same by transformers alone."""
    found = {}
    for each in turns:
        ids = torch.from_numpy(np.concatenate(each.ids)).long()
        logits = network(input_ids=ids[None], use_cache=False).logits[0].float()
        chosen = logits.log_softmax(-1)[:-1].gather(-1, ids[1:, None])[:, 0]
        found[each.id] = chosen[len(each.prompt) - 1 :]
    return found


def gradients(network, logprobs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    random = torch.Generator().manual_seed(0)
    weighted = [
        (part * torch.randn(len(part), generator=random)).sum()
        for _, part in sorted(logprobs.items())
    ]
    torch.stack(weighted).sum().backward()
    return {
        name: torch.zeros_like(p) if p.grad is None else p.grad
        for name, p in network.named_parameters()
    }


def apart(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> float:
    """The largest difference, of each weight's largest gradient or a thousandth of any."""
    least = 1e-3 * max(float(x.abs().max()) for x in wanted.values())
    return max(
        float((found[name] - x).abs().max()) / max(float(x.abs().max()), least)
        for name, x in wanted.items()
    )


@families(CASES)
def test_a_tree_has_the_log_probs_and_gradients_of_eager_attention_on_separate_rows(folder):
    turns, model = conversation(), loaded(folder)
    theirs = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    found, wanted = in_trees(model, turns), one_by_one(theirs, turns)
    for name, logprobs in wanted.items():
        assert float((found[name] - logprobs).abs().max()) < 1e-4
    assert apart(gradients(model.model, found), gradients(theirs, wanted)) < 1e-3


@families(HERE)
def test_the_embedded_engine_samples_with_the_learners_log_probs(folder):
    model = loaded(folder, sampled=True)
    assert model.samples_here
    prompt = np.arange(40, 60, dtype=np.int32)
    turns = sampled(model, [prompt, prompt[:17]])
    for name, found in in_one_row_each(model, turns).items():
        mine = next(each for each in turns if each.id == name)
        assert np.abs(found - mine.logprobs).max() < 1e-4


@pytest.mark.parametrize("name", ["Mistral", "Gemma2", "GptOss"])
def test_a_window_longer_than_any_probe_is_computed(tmp_path, name):
    model = loaded(make(tmp_path, "ruled", name, sliding_window=40), sampled=True)
    turns = sampled(model, [np.arange(40, 100, dtype=np.int32)])
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
    wanted = one_by_one(theirs, turns)
    found = in_trees(model, turns)
    for each in turns:
        logprobs = wanted[each.id].detach().numpy()
        assert np.abs(logprobs - each.logprobs).max() < 1e-4
        assert np.abs(logprobs - found[each.id].detach().numpy()).max() < 1e-4


def sampled(model: LanguageModel, prompts: list[np.ndarray]) -> list[Turn]:
    """Two answers of 16 tokens to each prompt, by the embedded engine."""
    engine = LocalEngine({"p": model}, barrier=IdleBarrier(), cache_gb=0.003)

    async def main():
        asked = (
            Request(f"r{i}", "p", ids, Sampling(max_tokens=16), i, (f"r{i}", 0, (0,)), n=2)
            for i, ids in enumerate(prompts)
        )
        return await asyncio.gather(*map(engine.generate, asked))

    turns = []
    for number, (ids, done) in enumerate(zip(prompts, asyncio.run(main()), strict=True)):
        for sample, each in enumerate(done):
            made = turn(prompt=ids, tokens=each.tokens, episode=f"e{number}.{sample}")
            made.logprobs = each.logprobs
            turns.append(made)
    return turns


def in_one_row_each(model: LanguageModel, turns: list[Turn]) -> dict[str, np.ndarray]:
    learner = LocalLearner(model, Optimizer(lr=1e-3), total_updates=1)
    noted = asyncio.run(learner.annotate(turns, {"new_logprobs"}, budget=10_000))
    return {name: found["new_logprobs"] for name, found in noted.items()}


@families([case for case in CASES if case[0] == "apart"])
def test_what_the_embedded_engine_cannot_sample_is_refused_with_what_to_set(folder):
    with pytest.raises(ValueError, match=r"^base .* cannot sample: set engine: vllm, or name"):
        load_model(str(folder), device=CPU, dtype=torch.float32)
    model = loaded(folder)
    assert not model.shares_prefixes
    assert not model.samples_here
    with pytest.raises(ValueError, match=r"'p'.*set engine: vllm"):
        LocalEngine({"p": model}, barrier=IdleBarrier())
    learner = LocalLearner(model, Optimizer(lr=1e-3), total_updates=1)
    assert not learner.shares_prefixes
    assert not learner.share_prefixes


def test_rows_of_a_recurrent_model_do_not_reach_each_other(tmp_path):
    model = loaded(make(tmp_path, "apart", "Lfm2"))
    [first, second] = [turn(episode=f"e{k}", prompt=[30 + k] * 9, tokens=[50, 60]) for k in (0, 1)]
    alone = in_one_row_each(model, [second])[second.id]
    behind = in_one_row_each(model, [first, second])[second.id]
    assert np.array_equal(alone, behind)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_window_that_only_the_mask_or_only_the_attention_has_is_found(tmp_path, dtype):
    """Of 200 tokens, which no row of the probe has."""
    load = partial(loaded, dtype=dtype)
    long = {"sliding_window": 200}
    make(tmp_path / "mask", "apart", "Phimoe", **long)
    make(tmp_path / "attention", "full", "Olmoe", **long)
    for name in ("mask", "attention"):
        reason = load(tmp_path / name).capabilities.separate_rows_reason
        assert "with a window of 6 tokens: logits differ" in reason
    assert load(make(tmp_path / "both", "ruled", "Mistral", **long)).samples_here
    unseen = {"sliding_window": 256}  # as long as the context
    assert load(make(tmp_path / "none", "apart", "Phimoe", **unseen)).samples_here


@pytest.mark.parametrize("name", ["Mistral", "Gemma2", "GptOss"])
def test_a_rule_that_is_a_little_wrong_would_be_noticed(tmp_path, monkeypatch, name):
    """Both when a base is loaded and in what is trained."""
    changes = {
        "Mistral": lambda rule: ScoreRule(rule.window + 1),
        "Gemma2": lambda rule: ScoreRule(rule.window, rule.softcap * 1.1),
        "GptOss": lambda rule: ScoreRule(rule.window, None, rule.sinks + 0.1),
    }
    turns, model = conversation(), loaded(make(tmp_path, "ruled", name))
    right, whole = in_trees(model, turns), ScoreRule.within
    monkeypatch.setattr(
        ScoreRule, "within", lambda rule, longest: whole(changes[name](rule), longest)
    )
    wrong = in_trees(model, turns)
    assert max(float((wrong[name] - right[name]).abs().max()) for name in right) > 1e-3
    assert not loaded(tmp_path).samples_here


@pytest.mark.parametrize(
    "case", [("ruled", "GptOss"), ("full", "StableLm"), ("apart", "Lfm2")], ids="-".join
)
def test_activations_that_are_computed_again_give_the_same_gradients(tmp_path, case):
    make(tmp_path, *case)
    plain, again = loaded(tmp_path), loaded(tmp_path)
    wanted = gradients(plain.model, in_trees(plain, conversation()))
    with recompute_activations(again.model):
        found = gradients(again.model, in_trees(again, conversation()))
    assert apart(found, wanted) < 1e-5


@pytest.mark.parametrize(
    "case", [("ruled", "Mistral"), ("full", "Nemotron"), ("apart", "Qwen3_5Text")], ids="-".join
)
def test_adapters_train_on_them_and_are_switched_off(tmp_path, case):
    base = loaded(make(tmp_path, *case))
    model = with_adapters(base.loaded, TOKENIZER, {"a": Adapter(rank=2)}, seed=0)["a"]
    [batch] = pack(conversation(), budget=10_000)
    learner = LocalLearner(model, Optimizer(lr=1e-3), total_updates=1, reference="base")
    first = learner.forward(batch).logprobs
    first.sum().backward()
    assert any(p.grad is not None and p.grad.any() for p in learner.parameters)
    with torch.no_grad():
        for _, parameter in model.named_parameters():
            parameter += 0.1
        moved = learner.forward(batch).logprobs
        bare = learner.forward(batch, reference=True).logprobs
    assert float((moved - first).abs().max()) > 0.01
    assert torch.allclose(bare, first, atol=1e-5)


@pytest.mark.parametrize(
    "case", [("ruled", "Gemma3Text"), ("full", "StableLm"), ("apart", "Qwen3_5Text")], ids="-".join
)
def test_copies_and_saved_weights_compute_the_same(tmp_path, case):
    model = loaded(make(tmp_path / "made", *case))
    wanted = in_trees(model, conversation())
    copy = model.frozen_copy()
    model.save(tmp_path / "saved")
    again = loaded(tmp_path / "saved")
    with torch.no_grad():
        for _, parameter in model.named_parameters():
            parameter += 0.1
    moved = in_trees(model, conversation())
    model.load(tmp_path / "saved")
    found = [in_trees(other, conversation()) for other in (copy, again, model)]
    for name, logprobs in wanted.items():
        assert not torch.allclose(moved[name], logprobs, atol=1e-3)
        assert all(torch.allclose(other[name], logprobs, atol=1e-5) for other in found)


@pytest.mark.parametrize("case", [("full", "Qwen3"), ("ruled", "Gemma2"), ("apart", "Qwen3Next"),
                                  ("apart", "FalconH1")], ids="-".join)  # fmt: skip
def test_log_probs_in_chunks_are_those_of_whole_logits(tmp_path, case, monkeypatch):
    """Also where a model changes what its head reads or says."""
    model = loaded(make(tmp_path, *case))
    whole = in_trees(model, conversation())
    monkeypatch.setattr("rolecall.learners.logprobs.LARGEST_LOGITS", 4 * model.vocabulary)
    for name, found in in_trees(model, conversation()).items():
        assert torch.allclose(found, whole[name], atol=1e-5)


@pytest.mark.parametrize(
    ("name", "changes"),
    # Rounding must not choose other experts.
    [("Mistral", {}), ("Gemma2", {}), ("GptOss", {"num_experts_per_tok": 4})],
)
def test_bfloat16_is_as_near_as_its_rounding(tmp_path, name, changes):
    make(tmp_path, "ruled", name, **changes)
    exact, rounded = (loaded(tmp_path, dtype=dtype) for dtype in (torch.float32, torch.bfloat16))
    assert rounded.samples_here
    batch = join([conversation()])
    found, wanted = (
        LocalLearner(model, Optimizer(lr=1e-3), total_updates=1).forward(batch).logprobs
        for model in (rounded, exact)
    )
    assert float((found - wanted).abs().mean()) < 0.05


def test_a_base_that_does_not_say_how_long_its_context_is_is_refused(tmp_path):
    make(tmp_path, "apart", "Mpt")
    file = tmp_path / "config.json"
    file.write_text(re.sub(r'"max_(seq_len|position_embeddings)": \d+,', "", file.read_text()))
    with pytest.raises(ValueError, match=r"how long its context is"):
        load_model(str(tmp_path), device=CPU, dtype=torch.float32, sampled=False)


@pytest.mark.parametrize(("row", "known"), [(0, FULL), (1, RULED), (2, APART)])
def test_the_page_of_models_names_these_families(row, known):
    page = Path(__file__).parents[2] / "docs/models.md"
    table = page.read_text().partition("| | families |")[2].strip().splitlines()[1:4]
    assert table[row].split(" | ")[1].removesuffix(" |").split(", ") == sorted(known)
