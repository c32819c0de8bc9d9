"""A pretrained model is sampled and trained as transformers has it (`rolecall fetch` brings it)."""

from __future__ import annotations

import asyncio
import json

import pytest
import torch
from transformers import AutoModelForCausalLM

from rolecall.core.interfaces.engine import Request, Sampling
from rolecall.engines.local import llama_pass
from rolecall.engines.local.engine import LocalEngine
from rolecall.models.base_location import locate
from rolecall.models.language_model import LanguageModel
from rolecall.models.loading import load_model, load_tokenizer
from rolecall.runtime.call_tree import IdleBarrier
from tests.cli.test_cli import rolecall
from tests.support.small_model import NAME, needs_small_model
from tests.toy import write

pytestmark = [
    pytest.mark.slow,
    needs_small_model,
]
QUESTIONS = {
    "What is 7 + 5? Answer with the number only.": "12",
    "Janet has 3 apples and buys 4 more. How many apples does she have?": "7",
}


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(NAME)


@pytest.fixture(scope="module")
def model(tokenizer):
    loaded = load_model(NAME, device=torch.device("cpu"), dtype=torch.float32)
    return LanguageModel(loaded, tokenizer)


def prompt_of(tokenizer, question):
    messages = [{"role": "user", "content": question}]
    return tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]


def test_bfloat16_is_sampled_by_our_pass_which_is_nearer_to_float32_than_the_modules(
    model, tokenizer
):
    loaded = load_model(NAME, device=torch.device("cpu"), dtype=torch.bfloat16)
    rounded = LanguageModel(loaded, tokenizer)
    text = "Ann has 5 coins. Ann gets 7 more. How many coins does Ann have now? 5 + 7 = 12."
    tokens = torch.tensor(tokenizer.encode(text))
    lengths, keep = torch.tensor([len(tokens)]), torch.arange(len(tokens))

    def logprobs(one, ask):
        taken = llama_pass.plain(one)
        assert taken is not None
        layout = taken.rows(lengths, like=taken.embedding if ask == "modules" else None)
        with torch.no_grad():
            if ask == "modules":
                logits = one.logits(tokens, layout.position, layout=layout, keep=keep)
            else:
                logits = taken.logits(tokens, layout, keep=keep)
        return logits.float().log_softmax(-1)

    exact = logprobs(model, "pass")

    def divergence(other):
        return float((exact.exp() * (exact - other)).sum(-1).mean())

    ours, theirs = (divergence(logprobs(rounded, ask)) for ask in ("pass", "modules"))
    assert 0 < ours < theirs < 0.05


def test_greedy_text_is_that_of_transformers_and_right(model, tokenizer):
    plain = AutoModelForCausalLM.from_pretrained(locate(NAME), dtype=torch.float32)
    engine = LocalEngine({"p": model}, barrier=IdleBarrier(), cache_gb=0.1)

    async def answer(prompt):
        sampling = Sampling(temperature=0.0, max_tokens=40)
        request = Request("r", "p", torch.tensor(prompt).int().numpy(), sampling, 0, ("t", 0, ()))
        [completion] = await engine.generate(request)
        return completion.tokens.tolist()

    for question, value in QUESTIONS.items():
        prompt = prompt_of(tokenizer, question)
        tokens = asyncio.run(answer(prompt))
        with torch.no_grad():
            wanted = plain.generate(torch.tensor([prompt]), max_new_tokens=40, do_sample=False)
        assert tokens == wanted[0, len(prompt) :].tolist()
        assert value in tokenizer.decode(tokens)


def test_digits_stand_alone(tokenizer):
    assert tokenizer.tokenize("12345") == ["1", "2", "3", "4", "5"]


def test_a_team_without_a_signal_is_told_what_to_do(tmp_path, capsys):
    team = write(tmp_path / "c.yaml", config())
    status, _, error = rolecall("check", team, "--try", 1, "--json", tmp_path / "x.json",
                                  capsys=capsys)  # fmt: skip
    assert status == 0, error
    found = json.loads((tmp_path / "x.json").read_text())["try"]
    assert found["case"] in ("unreadable", "cut off", "all wrong")
    assert any("warm_start" in one for one in found["advice"])
    assert len(found["samples"]) == 1


@pytest.mark.evidence
def test_a_few_steps_of_a_warm_start_bring_it_nearer_to_the_form(tmp_path, capsys):
    made = config() | {"evaluation": {"tasks": 4, "samples": 1}}
    made["trainer"] = {"steps": 1, "warm_start": {"steps": 6, "rows": 16, "lr": 5e-4}}
    team = write(tmp_path / "c.yaml", made)
    rolecall("train", team, "--output", tmp_path / "run", capsys=capsys)
    lines = (tmp_path / "run/warm_start/metrics.jsonl").read_text().splitlines()
    steps = [record for record in map(json.loads, lines) if record["kind"] == "step"]
    assert steps[-1]["agent/solver/loss"] < 0.6 * steps[0]["agent/solver/loss"]


def config() -> dict:
    return {
        "team": {
            "solver": {
                "policy": "p",
                "system": "Solve the problem. End with the answer in \\boxed{}.",
                "sampling": {"max_tokens": 24},
            }
        },
        "policies": {"p": {"base": NAME, "adapter": {"rank": 8}}},
        "workflow": "single",
        "environment": {"name": "math", "level": 1, "kinds": ["word"]},
        "algorithm": {"name": "grpo"},
        "rollout": {"groups": 2, "group_size": 4},
        "trainer": {"steps": 1},
        "evaluation": {"tasks": 0},
    }
