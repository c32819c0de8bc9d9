"""The embedded engine: what it says of its samples is true, whoever shares the batch."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from rolecall.algorithms.drmas import DrMas
from rolecall.config.optimizer import Optimizer
from rolecall.core.interfaces.engine import Request, Sampling
from rolecall.engines.local import scheduler
from rolecall.engines.local.engine import LocalEngine
from rolecall.learners.local import LocalLearner
from rolecall.learners.packing import join
from rolecall.models.attention.layouts import Rows
from rolecall.models.cpu.kernels import PAGE
from rolecall.models.language_model import LanguageModel
from rolecall.models.loading import load_model, load_tokenizer
from rolecall.runtime.call_tree import IdleBarrier
from tests.toy import CPU, language_model, turn

PROMPTS = [[65, 66, 67], [70] * 9, [66, 90], [80, 81, 82, 83, 84], [65, 66, 67]]


def request(number: int, sampling: Sampling, *, seed: int | None = None, n: int = 1) -> Request:
    return Request(
        id=f"r{number}",
        policy="p",
        prompt=np.array(PROMPTS[number % len(PROMPTS)], dtype=np.int32),
        sampling=sampling,
        seed=number if seed is None else seed,
        order=("t", number, (0,)),
        n=n,
    )


def engine(folder, **options) -> LocalEngine:
    return LocalEngine({"p": language_model(folder)}, barrier=IdleBarrier(), **options)


def generate(made: LocalEngine, requests: list[Request]):
    async def all_of_them():
        return [c for part in await asyncio.gather(*map(made.generate, requests)) for c in part]

    return asyncio.run(all_of_them())


def test_engine_logprobs_equal_learner_logprobs(any_model_folder):
    """Contract 1, at the sampling temperature, for each family."""
    made = engine(any_model_folder)
    sampling = Sampling(temperature=0.7, max_tokens=24)
    requests = [request(number, sampling) for number in range(12)]
    completions = generate(made, requests)
    turns = []
    for asked, said in zip(requests, completions, strict=True):
        made_turn = turn(prompt=asked.prompt.tolist(), tokens=said.tokens.tolist())
        made_turn.logprobs, made_turn.temperature = said.logprobs, 0.7
        turns.append(made_turn)
    learner = LocalLearner(made._schedulers["p"].model, Optimizer(lr=1e-3), total_updates=1)
    batch = join([[each] for each in turns])
    with torch.no_grad():
        found = learner.forward(batch).logprobs.numpy()
    sampled = batch.mask > 0
    assert sampled.sum() > 100
    assert np.abs(found - batch.old_logprobs)[sampled].max() <= 1e-4
    score = asyncio.run(made.score("p", requests[0].prompt, completions[0].tokens, temperature=0.7))
    assert np.abs(score - completions[0].logprobs).max() <= 1e-4


def test_in_bfloat16_engine_and_learner_differ_by_the_rounding_of_states_alone(any_model_folder):
    """Their states differ by some steps of 2 ** -8, and logits by as much of the largest one."""
    tokenizer = load_tokenizer(str(any_model_folder))
    base = load_model(str(any_model_folder), device=CPU, dtype=torch.bfloat16)
    made = LocalEngine({"p": LanguageModel(base, tokenizer)}, barrier=IdleBarrier())
    sampling = Sampling(max_tokens=24)
    requests = [request(number, sampling) for number in range(12)]
    turns = []
    for asked, said in zip(requests, generate(made, requests), strict=True):
        turns.append(turn(prompt=asked.prompt.tolist(), tokens=said.tokens.tolist()))
        turns[-1].logprobs = said.logprobs
    learner = LocalLearner(made._schedulers["p"].model, Optimizer(lr=1e-3), total_updates=1)
    batch = join([[each] for each in turns])
    with torch.no_grad():
        found = learner.forward(batch).logprobs.numpy()
        ids = torch.from_numpy(batch.tokens).long()
        layout = Rows([len(ids)], device=CPU)
        largest = float(base.model(input_ids=ids[None], layout=layout).logits.max())
    apart = np.abs(found - batch.old_logprobs)[batch.mask > 0]
    assert apart.mean() <= 2**-8 * largest
    assert apart.max() <= 16 * 2**-8 * largest
    before = {name: weight.clone() for name, weight in learner.model.weights().items()}
    for each in turns:
        each.advantages = np.ones(len(each.tokens), dtype=np.float32)
    asyncio.run(learner.update([[join([[each] for each in turns])]], DrMas(), per_agent=False))
    decoded = made._schedulers["p"].model.weights()
    assert any(not torch.equal(before[name], decoded[name]) for name in before), "the engine's too"


def test_in_float16_samples_have_the_log_probs_of_float32_but_for_its_rounding(any_model_folder):
    """Its states have steps of 2 ** -11; a GPU samples so, and a processor can, if slowly."""
    base = load_model(str(any_model_folder), device=CPU, dtype=torch.float16)
    tokenizer = load_tokenizer(str(any_model_folder))
    made = LocalEngine({"p": LanguageModel(base, tokenizer)}, barrier=IdleBarrier())
    requests = [request(number, Sampling(max_tokens=24)) for number in range(4)]
    exact = engine(any_model_folder)
    for asked, said in zip(requests, generate(made, requests), strict=True):
        score = asyncio.run(exact.score("p", asked.prompt, said.tokens, temperature=1.0))
        apart = np.abs(score - said.logprobs)
        assert 0 < apart.max() < 0.05


def test_log_probs_agree_with_transformers_own_attention(any_model_folder):
    """An oracle that shares no code with ours: eager attention over one unpacked row."""
    made = engine(any_model_folder)
    [said] = generate(made, [request(1, Sampling(max_tokens=30))])
    reference = AutoModelForCausalLM.from_pretrained(any_model_folder, attn_implementation="eager")
    prompt = PROMPTS[1]
    ids = torch.tensor([[*prompt, *said.tokens.tolist()]])
    with torch.no_grad():
        logits = reference.eval()(ids).logits[0].float().log_softmax(-1)[len(prompt) - 1 : -1]
    expected = logits.gather(-1, ids[0, len(prompt) :, None])[:, 0].numpy()
    assert np.abs(expected - said.logprobs).max() <= 1e-4


def test_a_request_draws_the_same_ids_alone_and_in_a_crowd(any_model_folder):
    sampling = Sampling(max_tokens=16)
    crowd = generate(engine(any_model_folder), [request(n, sampling) for n in range(20)])
    for number in (0, 7, 19):
        [alone] = generate(engine(any_model_folder), [request(number, sampling)])
        assert alone.tokens.tolist() == crowd[number].tokens.tolist()
    assert crowd[0].tokens.tolist() != crowd[5].tokens.tolist()  # one prompt, two seeds


def test_few_rows_and_a_small_cache_change_no_ids(model_folder):
    sampling = Sampling(max_tokens=16)
    requests = [request(n, sampling) for n in range(9)]
    wide = generate(engine(model_folder), requests)
    narrow = generate(engine(model_folder, max_sequences=2, cache_gb=1e-6 * 70), requests)
    assert [c.tokens.tolist() for c in wide] == [c.tokens.tolist() for c in narrow]


def test_temperature_zero_takes_the_most_likely_id(model_folder):
    made = engine(model_folder)
    [said] = generate(made, [request(0, Sampling(temperature=0.0, max_tokens=4))])
    score = asyncio.run(
        made.score("p", np.array(PROMPTS[0], np.int32), said.tokens, temperature=1.0)
    )
    assert np.abs(score - said.logprobs).max() <= 1e-4
    [other] = generate(made, [request(0, Sampling(temperature=0.0, max_tokens=4), seed=99)])
    assert other.tokens.tolist() == said.tokens.tolist()


@pytest.mark.parametrize(
    ("options", "largest"), [({"top_k": 3}, 3), ({"top_p": 0.05}, 40), ({"top_k": 1}, 1)]
)
def test_top_k_and_top_p_leave_only_the_likely_ids(model_folder, options, largest):
    made = engine(model_folder)
    sampling = Sampling(max_tokens=1, **options)
    first = [generate(made, [request(0, sampling, seed=s)])[0] for s in range(60)]
    assert len({int(c.tokens[0]) for c in first}) <= largest
    total = {int(c.tokens[0]): float(np.exp(c.logprobs[0])) for c in first}
    assert sum(total.values()) <= 1.0 + 1e-5  # of the distribution that was sampled from
    if options == {"top_k": 1}:
        assert abs(sum(total.values()) - 1.0) < 1e-6


def test_sampled_frequencies_match_the_reported_probabilities(model_folder):
    made = engine(model_folder)
    said = generate(made, [request(0, Sampling(max_tokens=1), seed=7, n=4000)])
    ids = np.array([int(c.tokens[0]) for c in said])
    probability = {int(c.tokens[0]): float(np.exp(c.logprobs[0])) for c in said}
    top = sorted(probability, key=lambda i: -probability[i])[:5]
    for token in top:
        expected = probability[token]
        assert abs((ids == token).mean() - expected) < 5 * np.sqrt(expected / 4000)


def test_a_stop_text_ends_a_turn_and_stays_in_its_ids(model_folder):
    made = engine(model_folder)
    tokenizer = made._schedulers["p"].model.tokenizer
    [free] = generate(made, [request(3, Sampling(max_tokens=40))])
    text = tokenizer.decode(free.tokens[:12])
    stop = next(c for c in text if c.isascii() and c.isprintable())
    [cut] = generate(made, [request(3, Sampling(max_tokens=40, stop=(stop,)))])
    assert cut.finish == "stop"
    assert stop in tokenizer.decode(cut.tokens)
    assert stop not in tokenizer.decode(cut.tokens[:-1])
    [by_id] = generate(
        made, [request(3, Sampling(max_tokens=40, stop_token_ids=(int(free.tokens[2]),)))]
    )
    assert by_id.tokens.tolist() == free.tokens[: len(by_id.tokens)].tolist()
    assert len(by_id.tokens) <= 3


def test_max_tokens_ends_a_turn_by_length(model_folder):
    [said] = generate(engine(model_folder), [request(1, Sampling(max_tokens=2))])
    assert (len(said.tokens), said.finish) == (2, "length")


def test_a_prompt_without_room_is_an_error_and_the_others_go_on(model_folder):
    made = engine(model_folder)
    long = Request(
        id="long", policy="p", prompt=np.full(3000, 65, np.int32), sampling=Sampling(), seed=0,
        order=("t", 0, (0,)),
    )  # fmt: skip

    async def both():
        return await asyncio.gather(
            made.generate(long),
            made.generate(request(0, Sampling(max_tokens=4))),
            return_exceptions=True,
        )

    failed, fine = asyncio.run(both())
    assert isinstance(failed, ValueError)
    assert "3000 tokens" in str(failed)
    assert "2047" in str(failed)
    assert 1 <= len(fine[0].tokens) <= 4


def test_a_cancelled_request_frees_its_row_and_the_others_go_on(model_folder):
    made = engine(model_folder)

    async def one_is_cancelled():
        kept = asyncio.create_task(made.generate(request(0, Sampling(max_tokens=30))))
        dropped = asyncio.create_task(made.generate(request(1, Sampling(max_tokens=1000))))
        for _ in range(6):
            await asyncio.sleep(0)
        dropped.cancel()
        said = await kept
        for _ in range(3):
            await asyncio.sleep(0)
        return said, made._schedulers["p"].active, made._rows

    said, active, rows = asyncio.run(one_is_cancelled())
    assert len(said[0].tokens) >= 1
    assert active == []
    assert rows == {}


def test_an_engine_failure_reaches_every_caller(model_folder, monkeypatch):
    made = engine(model_folder)

    def broken(*_args, **_options):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(scheduler, "Paged", broken)
    with pytest.raises(RuntimeError, match="out of memory"):
        generate(made, [request(0, Sampling(max_tokens=4))])


def test_the_cache_keeps_its_budget_when_rows_change_from_many_short_to_few_long(model_folder):
    per_id = 2 * 2 * 2 * 8 * 4  # keys and values, layers, heads, head size, bytes
    made = engine(model_folder, cache_gb=64 * 64 * per_id / 1e9)

    async def both():
        short = [made.generate(request(n, Sampling(max_tokens=8))) for n in range(40)]
        long = [
            made.generate(request(100 + n, Sampling(max_tokens=900, stop_token_ids=(67,))))
            for n in range(3)
        ]
        return await asyncio.gather(*short, *long)

    assert len(asyncio.run(both())) == 43
    allocator = made._schedulers["p"].allocator
    assert allocator.cache.keys[0].shape[0] * PAGE <= 64 * 64
    assert not allocator._users.any()
