"""Agents that share a policy and have clips, KL and entropy of their own."""

from __future__ import annotations

import pytest
import torch

from rolecall.algorithms.drmas import DrMas
from rolecall.config.load import load
from rolecall.learners.by_agent import ByAgent, combine_objectives
from rolecall.learners.packing import pack
from rolecall.setup.plan import validate
from tests.algorithms.small import Unigram
from tests.algorithms.test_every_algorithm import case, train
from tests.algorithms.test_rules import random_turns
from tests.toy import write

LOGITS = [0.5, -0.3, 0.1, 0.9, 0.0, 0.2, 0, 0, 0]
SETTINGS = {
    "solver": DrMas(clip_low=0.05, clip_high=0.05, kl=0.3),
    "verifier": DrMas(entropy=0.4),
}


@pytest.mark.parametrize("apart", [True, False])
def test_each_agents_tokens_have_its_own_loss_and_all_are_counted_alike(apart):
    turns = random_turns(10)
    for number, one in enumerate(turns):
        one.agent = "verifier" if number % 3 else "solver"
    policy = Unigram(LOGITS)
    found = torch.zeros(len(LOGITS))
    whole = combine_objectives(SETTINGS)
    batches = pack(turns, budget=60, by_agent=apart)
    parts = [part for batch in batches for part in batch.parts or [batch]]
    assert any(batch.parts for batch in batches) != apart
    found = policy.gradient(parts, whole)
    number = sum(len(t.tokens) for t in turns)
    expected = torch.zeros(len(LOGITS))
    for agent, rule in SETTINGS.items():
        mine = [t for t in turns if t.agent == agent]
        share = sum(len(t.tokens) for t in mine) / number
        expected += share * policy.gradient(pack(mine, budget=1000), rule)
    assert torch.allclose(found, expected, atol=1e-6)
    one_for_all = policy.gradient(parts, SETTINGS["solver"])
    assert not torch.allclose(found, one_for_all, atol=1e-3)


def test_equal_settings_are_one_objective():
    rule = DrMas()
    assert combine_objectives({"solver": rule, "verifier": rule}) is rule
    assert isinstance(combine_objectives(SETTINGS), ByAgent)
    assert combine_objectives(SETTINGS).entropy == 0.4


def test_a_team_on_one_policy_is_trained_with_settings_of_its_agents(model_folder, tmp_path):
    """One of them is held at a reference, for which the others' turns are annotated too."""
    config = case(model_folder, "grpo with kl", trainer={"steps": 2})
    config["algorithm"] = "drmas"
    config["team"]["second"]["algorithm"] = {"name": "drmas", "kl": 0.5, "clip_high": 0.3}
    config["policies"]["b"].pop("reference")
    last = train(config, tmp_path / "run").last
    assert last["agent/second/kl_loss"] > 0
    assert "agent/first/kl_loss" not in last


def test_what_belongs_to_the_whole_step_must_still_be_equal(model_folder, tmp_path):
    config = case(model_folder, "grpo")
    config["team"]["second"]["algorithm"] = {"name": "grpo", "agg": "token"}
    with pytest.raises(ValueError, match="agg is 'turn_mean' of 'first' and 'token' of 'second'"):
        validate(load(write(tmp_path / "run.yaml", config)))
