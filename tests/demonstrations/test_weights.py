"""Rows and messages count by their weights: behaviour cloning by reward, and next states."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from rolecall.agents.agent import Policy
from rolecall.algorithms.sft import Sft
from rolecall.config.data_set_export import CollectConfig, collect_config
from rolecall.core.errors import ConfigError
from rolecall.core.interfaces.algorithm import Outputs
from rolecall.core.types import Message
from rolecall.demonstrations.data_set import make_rows
from rolecall.demonstrations.offline_data import demonstrations
from rolecall.learners.packing import join
from rolecall.models.loading import load_tokenizer
from tests.algorithms.small import floats
from tests.toy import agent, episode, turn


@pytest.fixture
def solver(model_folder):
    policy = Policy("p", load_tokenizer(str(model_folder)), engine=None)
    return {"solver": agent("solver", policy)}


def read(tmp_path, solver, *rows, **options):
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    return [e for group in demonstrations(file, solver, **options) for e in group]


def advantages(episodes):
    Sft().credit(episodes)
    return [one.advantages for each in episodes for one in each.turns]


def test_a_row_counts_by_its_weight_and_a_message_by_the_product(tmp_path, solver):
    talk = [
        {"role": "user", "content": "a?"}, {"role": "assistant", "content": "b", "weight": 0.5},
        {"role": "user", "content": "c?"}, {"role": "assistant", "content": "d", "weight": 0},
        {"role": "user", "content": "e?"}, {"role": "assistant", "content": "f"},
    ]  # fmt: skip
    rows = [{"prompt": "a?", "completion": "b"}, {"messages": talk, "weight": 3}]
    plain, half, shown, whole = advantages(read(tmp_path, solver, *rows))
    assert set(plain) == {1.0}
    assert set(half) == {1.5}
    assert shown is None or not np.any(shown)
    assert set(whole) == {3.0}


def test_a_weight_multiplies_the_parts_that_are_imitated(tmp_path, solver):
    parts = [{"text": "wrong ", "weight": 0}, {"text": "right", "weight": 1}]
    row = {"prompt": "a?", "completion": parts, "weight": 2}
    [weights] = advantages(read(tmp_path, solver, row))
    assert set(weights) == {0.0, 2.0}


def test_the_loss_is_the_weighted_likelihood_over_the_tokens_that_count():
    """Log-probs -1, -2 with weight 2 and -3, -4 with weight 1: (2 * 3 + 7) / 4 = 3.25."""
    turns = [turn(episode="e0", tokens=[7, 8]), turn(episode="e1", tokens=[7, 8])]
    turns[0].training.imitated = floats([2, 2])
    episodes = [episode(n, [one], {"team": 1.0}) for n, one in enumerate(turns)]
    algorithm = Sft()
    algorithm.credit(episodes)
    batch = join([[one] for one in turns])
    logprobs = torch.zeros(len(batch.tokens))
    logprobs[torch.from_numpy(batch.mask > 0)] = torch.tensor([-1.0, -2.0, -3.0, -4.0])
    loss = algorithm.loss(batch, Outputs(logprobs, None, None))
    assert float(loss.total) / loss.count == pytest.approx(3.25)


@pytest.mark.parametrize("weight", [-1, "much", True, 2000, float("nan")])
def test_a_weight_that_is_none_is_refused_with_its_line(tmp_path, solver, weight):
    row = {"prompt": "a?", "completion": "b", "weight": weight}
    with pytest.raises(ValueError, match=r"rows.jsonl:1.*weight: write a number from 0 to 1000"):
        read(tmp_path, solver, row)


def test_a_row_of_weight_0_and_weights_for_other_algorithms_are_refused(tmp_path, solver):
    row = {"prompt": "a?", "completion": "b"}
    with pytest.raises(ValueError, match="a row of weight 0 teaches nothing"):
        read(tmp_path, solver, row | {"weight": 0})
    with pytest.raises(ValueError, match="only sft weighs answers"):
        read(tmp_path, solver, row | {"weight": 2}, in_parts=False)


def test_rows_are_weighed_by_their_rewards(tmp_path):
    episodes = [
        episode(n, [turn(episode=f"e{n}")], {"team": reward}) for n, reward in enumerate([1, 0, 2])
    ]
    rows = make_rows(episodes, CollectConfig(weigh="reward"), tokenizers={"p": "x"})
    assert [row["weight"] for row in rows] == [1.0, 2.0]
    alike = make_rows(episodes, CollectConfig(), tokenizers={"p": "x"})
    assert len(alike) == 3
    assert not any("weight" in row for row in alike)


def test_what_the_world_showed_next_has_a_weight_of_its_own():
    first, second = turn(episode="e", tokens=[7]), turn(episode="e", tokens=[8], path=(1,))
    first.text, second.parents, second.observation = "up", (first.id,), "height 1"
    second.messages = [Message("assistant", "up"), Message("user", "height 1")]
    episodes = [episode(0, [first, second], {"team": 1.0})]
    options = CollectConfig(imitate="both", world_weight=0.5)
    rows = make_rows(episodes, options, tokenizers={"p": "x"})
    assert [(row["completion"], row.get("weight")) for row in rows][-1] == ("height 1", 0.5)
    assert len(rows) == 3


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"weigh": "reward", "pairs": True}, "--pairs: weigh has no effect on pairs"),
        ({"world_weight": 0.5}, "^--world-weight has no effect .*; write --imitate both"),
        ({"weigh": "length"}, "--weigh: "),
    ],
)
def test_options_without_an_effect_are_refused(options, said):
    with pytest.raises(ConfigError, match=said):
        collect_config(options)
