"""Teams play and train on real templates: debates, thoughts, tools and coaches."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest

import rolecall
from rolecall.agents.chat_template import prompt_ids
from rolecall.agents.written_turn import write_ids, write_turn
from rolecall.core.tags import visible
from rolecall.core.types import Message
from rolecall.tools.calculator import calculator
from tests import toy
from tests.real.models import real_tokenizer
from tests.real.parrots import write_parrot
from tests.real.test_tools import NATIVE, write_call
from tests.support.evidence import leave_to_evidence

pytestmark = pytest.mark.slow
FAMILIES = [
    "aya_expanse", "deepseek_v3-deepseekv3", "gemma3-gemma3", "gptoss-gptoss", "llama2-phi3",
    "llama3_1-llama3_1", "mistral_nemo", "qwen2_5-qwen2_5", "qwen3-qwen3", "qwen3-qwen3_5_think",
    "qwen3-glm4moe", "qwen3-nemotron_3_nano",
]  # fmt: skip
WITH_THOUGHTS = ["gptoss-gptoss", "qwen3-qwen3", "qwen3-qwen3_5_think", "qwen3-glm4moe"]
FEW = ["llama2-phi3", "qwen3-qwen3"]
THOUGHT, ANSWER = "Two and three.", "It is \\boxed{5}."


def written(tokenizer, text) -> np.ndarray:
    """Return the turn as a model of this family would sample it."""
    question = [Message("user", "What is 2 + 3?")]
    prompt = prompt_ids(tokenizer, question, options={})
    return write_ids(tokenizer, prompt, write_turn(tokenizer, question, text, options={}))


def train_once(folder, base, agents, **sections):
    """Train a team for one step; return the turns of its episodes and the step's metrics."""
    config = {
        "team": agents,
        "policies": {"p": {"base": base, "adapter": {"rank": 4}}},
        "environment": {"name": "math", "level": 1, "kinds": ["word"]},
        "algorithm": "grpo",
        "rollout": {"groups": 2, "group_size": 2},
        "rewards": {f"{toy.__file__}:alternate": 1.0},
        "trainer": {"steps": 1},
        "evaluation": {"tasks": 0},
        **sections,
    }
    rolecall.train(config, output=folder)
    run = rolecall.load_run(folder)
    metrics = run.metrics().to_pylist()[0]
    return run.episodes(split="train").to_pylist(), metrics


@pytest.mark.parametrize("name", leave_to_evidence(FAMILIES, keep=FEW))
def test_debaters_read_one_another_and_are_trained_on_what_they_said(name, tmp_path):
    tokenizer = real_tokenizer(name)
    turn = written(tokenizer, ANSWER)
    base = write_parrot(tmp_path / "base", tokenizer, turn)
    debater = {"policy": "p", "role": "debater", "sampling": {"max_tokens": len(turn) + 2}}
    workflow = {"name": "majority_vote", "earns": "outcome"}
    turns, metrics = train_once(
        tmp_path / "run", base, {"ann": debater, "ben": debater}, workflow=workflow
    )
    assert len(turns) == 2 * 2 * 2 * 2
    for one in turns:
        assert (one["token_ids"], one["finish"]) == (turn.tolist(), "stop")
        assert visible(one["text"]) == ANSWER
        answers = tokenizer.decode(one["prompt_token_ids"]).count(ANSWER)
        assert answers == (2 if one["parents"] else 0)
    for agent in ("ann", "ben"):
        assert metrics[f"agent/{agent}/mismatch_max"] < 1e-4
        assert metrics[f"agent/{agent}/trained_tokens"] == len(turn) * len(turns) / 2


@pytest.mark.parametrize("name", leave_to_evidence(WITH_THOUGHTS, keep=["qwen3-qwen3"]))
def test_a_thought_is_trained_and_nobody_else_reads_it(name, tmp_path):
    tokenizer = real_tokenizer(name)
    turn = written(tokenizer, f"<think>\n{THOUGHT}\n</think>\n\n{ANSWER}")
    base = write_parrot(tmp_path / "base", tokenizer, turn)
    sampling = {"max_tokens": len(turn) + 2}
    agents = {
        "solver": {"policy": "p", "sampling": sampling},
        "verifier": {"policy": "p", "sampling": sampling},
    }
    turns, metrics = train_once(tmp_path / "run", base, agents, workflow="solver_verifier")
    assert {one["agent"] for one in turns} == {"solver", "verifier"}
    for one in turns:
        assert one["token_ids"] == turn.tolist()
        assert THOUGHT in one["text"]
        prompt = tokenizer.decode(one["prompt_token_ids"])
        assert (ANSWER in prompt) == bool(one["parents"])
        is_own = bool(one["parents"]) and one["agent"] == "solver"
        assert prompt.count(THOUGHT) == is_own, "it stays in its own tokens alone"
    assert metrics["agent/solver/trained_tokens"] == len(turn) * sum(
        one["agent"] == "solver" for one in turns
    )


@pytest.mark.parametrize("name", leave_to_evidence(FAMILIES, keep=FEW))
def test_a_call_in_the_models_own_form_is_answered_behind_the_turn(name, tmp_path):
    tokenizer = real_tokenizer(name)
    is_native = name in NATIVE
    arguments = {"expression": "2+3"}
    if is_native:
        turn = write_call(tokenizer, "calculator", arguments)
    else:
        call = {"name": "calculator", "arguments": arguments}
        turn = written(tokenizer, f"<tool_call>{json.dumps(call)}</tool_call>")
    schema = calculator.schema if is_native else None
    base = write_parrot(tmp_path / "base", tokenizer, turn, tool=schema)
    tools = {"use": ["calculator"], "format": "native" if is_native else "tags", "max_calls": 2}
    agents = {"solver": {"policy": "p", "sampling": {"max_tokens": len(turn) + 2}, "tools": tools}}
    turns, metrics = train_once(tmp_path / "run", base, agents, workflow="single")
    assert len(turns) == 4 * 3
    for before, after in pairwise(turns):
        if after["parents"]:
            start = [*before["prompt_token_ids"], *before["token_ids"]]
            assert after["prompt_token_ids"][: len(start)] == start
            behind = tokenizer.decode(after["prompt_token_ids"][len(start) :])
            assert "5" in behind
    assert metrics["agent/solver/mismatch_max"] < 1e-4


@pytest.mark.parametrize("name", leave_to_evidence([*FEW, "gemma3-gemma3"], keep=FEW))
def test_a_coach_on_a_local_model_scores_each_action(name, tmp_path):
    tokenizer = real_tokenizer(name)
    score = json.dumps({"reasoning": "Right.", "process_score": 8})
    verdict, turn = written(tokenizer, score), written(tokenizer, ANSWER)
    base = write_parrot(tmp_path / "base", tokenizer, turn)
    judge = write_parrot(tmp_path / "judge", tokenizer, verdict)
    agents = {"solver": {"policy": "p", "sampling": {"max_tokens": len(turn) + 2}}}
    policies = {
        "p": {"base": base, "adapter": {"rank": 4}},
        "judge": {"base": judge, "replies": {"max_tokens": len(verdict) + 2}},
    }
    coach = {"policy": "judge", "answers": {"check_request": False}, "w_outcome": 0.5}
    rewards = {f"{toy.__file__}:alternate": 1.0, "coach": coach}
    turns, _ = train_once(
        tmp_path / "run", base, agents, workflow="single", policies=policies, rewards=rewards
    )
    for one in turns:
        assert dict(one["turn_rewards"])["coach"] == pytest.approx(0.8 + 0.5 * one["score"])
