"""SFT: which turns are imitated, its loss beside transformers' own, and a warm start for RL."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from rolecall.agents.agent import Policy
from rolecall.algorithms.sft import Sft
from rolecall.config.optimizer import Optimizer
from rolecall.core.errors import ConfigError
from rolecall.core.interfaces.algorithm import Outputs
from rolecall.demonstrations.offline_data import demonstrations
from rolecall.engines.scripted import ScriptedEngine
from rolecall.learners.local import LocalLearner
from rolecall.learners.packing import pack
from tests.algorithms.test_every_algorithm import Display, trainer_of
from tests.demonstrations.test_preferences import written
from tests.toy import agent, episode, language_model, relay_config, solo_config, turn


def credited(scores, lengths, **options):
    episodes = [
        episode(i, [turn(episode=f"{i}", tokens=list(range(length)))], {"team": score})
        for i, (score, length) in enumerate(zip(scores, lengths, strict=True))
    ]
    Sft(**options).credit(episodes)
    return [one.turns[0] for one in episodes]


def loss_of(turns, logprobs):
    """Mean loss of turns whose sampled ids all have these log-probs, in order."""
    parts = []
    for batch in pack(turns, budget=10_000, skip_zero=Sft().skips_zero, share=False):
        found = torch.zeros(len(batch.tokens))
        found[torch.from_numpy(batch.mask).bool()] = torch.tensor(logprobs)
        parts.append(Sft().loss(batch, Outputs(found)))
    return sum(float(part.total) for part in parts) / sum(part.count for part in parts)


def test_the_loss_is_the_mean_of_minus_log_p_over_the_imitated_ids():
    """ALGORITHMS 2.23: log-probs -1, -2, -3, -4 give 2.5."""
    assert loss_of(credited([1.0], [4]), [-1.0, -2.0, -3.0, -4.0]) == 2.5


def test_turns_below_the_threshold_are_in_neither_sum_nor_count():
    turns = credited([1.0, 0.0], [4, 3])
    assert [bool(np.any(one.advantages)) for one in turns] == [True, False]
    assert loss_of(turns, [-1.0, -2.0, -3.0, -4.0]) == 2.5
    lower = credited([1.0, 0.5, 0.0], [1, 1, 1], threshold=0.5)
    assert [float(one.advantages[0]) for one in lower] == [1.0, 1.0, 0.0]


def test_where_nothing_reaches_the_threshold_nothing_is_packed():
    assert pack(credited([0.0, 0.5], [2, 2]), budget=100, skip_zero=Sft().skips_zero) == []


def conversation(rewards, outcome):
    """An attempt of as many turns as there are own rewards, two tokens each."""
    turns = [
        turn(episode="e", path=(i,), tokens=[7, 8], rewards=own) for i, own in enumerate(rewards)
    ]
    return episode(0, turns, {"team": outcome})


def test_a_wrong_step_is_in_neither_sum_nor_count():
    """ALGORITHMS 2.23: 3.5 where the first two tokens are a wrong step, else 2.5."""
    played = conversation([{"coach": 0.1}, {"coach": 0.9}], 1.0)
    algorithm = Sft(step_threshold=0.5)
    algorithm.credit([played])
    assert [float(one.advantages[0]) for one in played.turns] == [0.0, 1.0]
    assert loss_of(played.turns, [-3.0, -4.0]) == 3.5
    Sft().credit([played])
    assert loss_of(played.turns, [-1.0, -2.0, -3.0, -4.0]) == 2.5


def test_the_outcome_and_a_steps_own_reward_are_not_mixed_up():
    """A good step of a lost episode is not imitated, nor a wrong one of an episode that was won."""

    def imitated(rewards, outcome):
        played = conversation(rewards, outcome)
        Sft(step_threshold=0.0).credit([played])
        return [float(one.advantages[0]) for one in played.turns]

    assert imitated([{"step": 1.0}, {"step": -0.1}, {}], 1.0) == [1.0, 0.0, 1.0]
    assert imitated([{"step": 1.0}, {"step": -0.1}, {}], 0.0) == [0.0, 0.0, 0.0]


def test_the_best_attempts_of_each_task_are_imitated_whatever_their_order():
    def imitated(order, **options):
        episodes = [
            episode(i, [turn(episode=f"{i}", tokens=[i])], {"team": score})
            for i, score in enumerate([0.5, 1.0, 1.0, 0.0])
        ]
        Sft(threshold=0.5, **options).credit([episodes[i] for i in order])
        return [i for i, one in enumerate(episodes) if one.turns[0].advantages[0]]

    for order in ([0, 1, 2, 3], [3, 2, 1, 0]):
        assert imitated(order) == [0, 1, 2]
        assert imitated(order, best_of=2) == [1, 2]
        assert imitated(order, best_of=1) == [1]
        assert imitated(order, best_of=4) == [0, 1, 2]


def test_messages_of_weight_0_are_shown_and_not_imitated(solver, tmp_path):
    wrong, right = (
        [{"role": "user", "content": "?"}, {"role": "assistant", "content": said, "weight": weight}]
        for said, weight in (("bad", 0), ("good", 1))
    )
    file = written(tmp_path / "r.jsonl", {"messages": [*wrong, *right]})
    [[one]] = demonstrations(file, solver)
    Sft().credit([one])
    assert [t.text for t in one.turns if t.advantages is not None] == ["good"]
    assert "bad" in solver["solver"].policy.tokenizer.decode(one.turns[1].prompt)


ROWS = [
    {"prompt": "2+2?", "completion": "It is 4."},
    {"prompt": "A letter", "completion": "Which one would you like to have?"},
    {
        "messages": [
            {"role": "user", "content": "a?"},
            {"role": "assistant", "content": "a"},
            {"role": "user", "content": "b?"},
            {"role": "assistant", "content": "bb"},
        ]
    },
]


@pytest.fixture
def model(model_folder):
    return language_model(model_folder)


@pytest.fixture
def solver(model):
    policy = Policy("p", model.tokenizer, ScriptedEngine(model.tokenizer, lambda _: ""))
    return {"solver": agent("solver", policy, system="Answer.")}


@pytest.mark.parametrize("budget", [10_000, 60])
def test_loss_and_gradient_agree_with_transformers(model, solver, model_folder, tmp_path, budget):
    groups = demonstrations(written(tmp_path / "rows.jsonl", *ROWS), solver)
    episodes = [one for group in groups for one in group]
    turns = [one for each in episodes for one in each.turns]
    assert [one.text for one in turns] == [
        "It is 4.", "Which one would you like to have?", "a", "bb",
    ]  # fmt: skip
    learner = LocalLearner(model, Optimizer(lr=1e-3), total_updates=1)
    algorithm = Sft()
    algorithm.credit(episodes)
    losses = [algorithm.loss(b, learner.forward(b)) for b in pack(turns, budget=budget)]
    ours = sum(loss.total for loss in losses) / sum(loss.count for loss in losses)
    ours.backward()

    theirs = AutoModelForCausalLM.from_pretrained(model_folder, dtype="float32")
    total, count = torch.zeros(()), 0
    for one in turns:
        ids = torch.from_numpy(np.concatenate([one.prompt, one.tokens])).long()[None]
        labels = ids.clone()
        labels[:, : len(one.prompt)] = -100
        total = total + theirs(input_ids=ids, labels=labels).loss * len(one.tokens)
        count += len(one.tokens)
    (total / count).backward()
    assert float(ours.detach()) == pytest.approx(float(total.detach()) / count, rel=1e-5)
    wanted = dict(theirs.named_parameters())
    for name, parameter in model.named_parameters():
        scale = float(wanted[name].grad.abs().max())
        assert torch.allclose(parameter.grad, wanted[name].grad, atol=1e-5 * scale + 1e-8), name


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"prompt": "a?"}, "neither `messages` nor `prompt` and `completion`"),
        ({"messages": [{"role": "user", "content": "a?"}]}, "the assistant says nothing"),
        ({"messages": [{"role": "assistant", "content": "a"}]}, "does not end with a user"),
        ({"messages": [{"role": "user"}]}, "neither texts nor lists of chat messages"),
        (
            {
                "messages": [
                    {"role": "user", "content": "a?"},
                    {"role": "assistant", "content": "b", "weight": 0},
                ]
            },
            "all that the assistant says has weight 0",
        ),
        (
            {"messages": [{"role": "user", "content": "a?", "weight": -1}]},
            "weight: write a number from 0",
        ),
        ({"messages": 5}, "neither texts nor lists of chat messages"),
        ({**ROWS[0], "agent": "nobody"}, "no agent 'nobody'"),
    ],
)
def test_a_row_without_a_demonstration_is_named_by_file_and_line(solver, tmp_path, row, said):
    with pytest.raises(ValueError, match=r"r\.jsonl:2.*") as error:
        demonstrations(written(tmp_path / "r.jsonl", ROWS[0], row), solver)
    assert said in str(error.value)


def imitating(folder, file, **changes):
    config = solo_config(folder, algorithm="sft", trainer={"steps": 12, "save_every": 12})
    config["policies"]["a"]["optimizer"] = {"lr": 3e-3}
    config["rollout"] = {"groups": 4, "data": str(file)}
    return config | changes


def test_a_run_learns_the_demonstrations_and_another_one_starts_from_its_weights(
    model_folder, tmp_path
):
    rows = [{"prompt": f"{n}?", "completion": "aa"} for n in "0123"]
    file = written(tmp_path / "r.jsonl", *rows)
    display, losses = Display(), []
    display.step = lambda record: losses.append(record["agent/solver/loss"])
    asyncio.run(trainer_of(imitating(model_folder, file), tmp_path / "warm", display).train())
    assert losses[-1] < 0.2 * losses[0]

    config = solo_config(model_folder, trainer={"steps": 1})
    warm = tmp_path / "warm/checkpoints/step-12/a"
    config["policies"]["a"]["base"] = str(warm)
    begun = dict(
        trainer_of(config, tmp_path / "warmed", Display())
        .run.publisher.models["a"]
        .named_parameters()
    )
    saved = load_file(warm / "model.safetensors")
    assert saved.keys() & begun.keys()
    assert all(torch.equal(begun[name], saved[name]) for name in saved.keys() & begun.keys())


def test_sampled_turns_that_earned_enough_are_imitated(model_folder, tmp_path):
    config = solo_config(model_folder, algorithm={"name": "sft", "threshold": 0.3})
    display = Display()
    records = []
    display.step = records.append
    asyncio.run(trainer_of(config, tmp_path / "run", display).train())
    assert all("agent/solver/loss" in record for record in records)


def test_one_file_cannot_hold_demonstrations_and_preferences(model_folder, tmp_path):
    file = written(tmp_path / "r.jsonl", *ROWS)
    config = relay_config(model_folder, algorithm="sft")
    config["rollout"] = {"groups": 3, "data": str(file)}
    config["team"]["last"]["algorithm"] = "dpo"
    config["policies"]["b"]["reference"] = "initial"
    with pytest.raises(ConfigError, match=r"rollout\.data: one file cannot hold both"):
        trainer_of(config, tmp_path / "run", Display())
