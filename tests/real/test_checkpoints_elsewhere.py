"""A trained real model says the same in transformers, PEFT and vLLM as in `Team.ask`."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

import rolecall
from rolecall.models.base_location import locate
from rolecall.rollout.episodes import PlaySettings
from tests.support.small_model import NAME, needs_small_model

MAX_TOKENS = 24
ADAPTERS = {"all": {"rank": 8}, "whole": None}
QUESTIONS = [
    f"Eva has {first} apples. Eva gets {second} more. How many apples does Eva have now?"
    for first, second in ((3, 4), (12, 7), (25, 9), (18, 2))
]
# vLLM changes the process that it runs in.
IN_VLLM = """
import json, os, sys
os.environ.update(VLLM_ENABLE_V1_MULTIPROCESSING="0", HF_HUB_OFFLINE="1")
os.environ["VLLM_CPU_KVCACHE_SPACE"] = "1"
from vllm import LLM, SamplingParams
from vllm.inputs import TokensPrompt
from vllm.lora.request import LoRARequest
base, adapter, file, count = sys.argv[1:]
llm = LLM(model=base, dtype="float32", max_model_len=256, enforce_eager=True,
          enable_lora=bool(adapter), max_lora_rank=8)
prompts = [TokensPrompt(prompt_token_ids=ids) for ids in json.load(open(file))]
outputs = llm.generate(
    prompts, SamplingParams(temperature=0.0, max_tokens=int(count)),
    lora_request=LoRARequest("one", 1, adapter) if adapter else None,
)
json.dump([list(one.outputs[0].token_ids) for one in outputs], open(file, "w"))
"""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.evidence,
    needs_small_model,
]


@pytest.fixture(scope="module", params=list(ADAPTERS))
def trained(request, tmp_path_factory):
    """Return whether it is an adapter, its folder, and the prompts and answers of the team."""
    folder = tmp_path_factory.mktemp(request.param) / "run"
    adapter = ADAPTERS[request.param]
    rate = 5e-4 if adapter else 5e-5
    solver = {"policy": "solver", "sampling": {"max_tokens": MAX_TOKENS}}
    config = {
        "team": {"solver": solver},
        "policies": {"solver": {"base": NAME, "adapter": adapter, "optimizer": {"lr": rate}}},
        "workflow": "single",
        "environment": {"name": "math", "level": 1, "kinds": ["word"]},
        "algorithm": "sft",
        "rollout": {"groups": 16, "data": "environment"},
        "trainer": {"steps": 4},
        "evaluation": {"tasks": 0},
    }
    rolecall.train(config, output=folder)
    with rolecall.Team.load(folder) as team:
        team.context = team.context.with_settings(PlaySettings(sampling={"temperature": 0.0}))
        turns = [team.ask_now(question).turns[0] for question in QUESTIONS]
    asked = [(turn.ids[0].tolist(), turn.ids[1].tolist()) for turn in turns]
    return bool(adapter), folder / "checkpoints/step-4/solver", asked


def test_transformers_and_peft_say_the_same(trained):
    is_adapter, folder, asked = trained
    base = locate(NAME) if is_adapter else folder
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    if is_adapter:
        model = PeftModel.from_pretrained(model, folder)
    answers = [answer for _, answer in asked]
    assert [generate(model, prompt) for prompt, _ in asked] == answers
    untrained = AutoModelForCausalLM.from_pretrained(locate(NAME), dtype=torch.float32)
    assert [generate(untrained, prompt) for prompt, _ in asked] != answers


def generate(model, prompt):
    ids = torch.tensor([prompt])
    out = model.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False,
        max_new_tokens=MAX_TOKENS, pad_token_id=0,
    )  # fmt: skip
    return out[0, len(prompt) :].tolist()


@pytest.mark.alone
def test_vllm_says_the_same(trained, tmp_path):
    if find_spec("vllm") is None:
        pytest.skip("vllm is not installed")
    is_adapter, folder, asked = trained
    file = tmp_path / "prompts.json"
    file.write_text(json.dumps([prompt for prompt, _ in asked]))
    base, adapter = (locate(NAME), folder) if is_adapter else (folder, "")
    arguments = [str(base), str(adapter), str(file), str(MAX_TOKENS)]
    subprocess.run([sys.executable, "-c", IN_VLLM, *arguments], check=True)
    assert json.loads(file.read_text()) == [answer for _, answer in asked]
