"""VDN and QMIX as published, on utterances: who plays what, what is learned, and from what."""

from __future__ import annotations

import asyncio
from random import Random

import numpy as np
import pytest
import torch

from rolecall.algorithms.value_learning import EpsilonGreedy, QmixValue, VdnValue
from rolecall.config.load import load
from rolecall.config.optimizer import Optimizer
from rolecall.core.errors import ConfigError
from rolecall.core.types import Episode
from rolecall.critics.replay import ReplayCritic
from rolecall.setup.plan import validate
from rolecall_lab.proofs.value_games import TWO_STEP
from tests.algorithms.test_every_algorithm import case, train
from tests.support.evidence import leave_to_evidence
from tests.toy import episode, language_model, turn, write

LEFT, RIGHT = "left", "right"


def critic_of(folder, mixer: str = "vdn", *, lr: float = 3e-3, buffer: int = 100) -> ReplayCritic:
    model = language_model(folder)
    return ReplayCritic(
        {"p": model}, Optimizer(lr=lr), agents=[LEFT, RIGHT], mixer=mixer,
        reader=model if mixer == "qmix" else None, budget=4000, total_updates=10_000,
        buffer=buffer,
    )  # fmt: skip


def game(number: int, first: int, second: tuple[int, int]) -> Episode:
    """The two-step game of QMIX: agent 0 picks 2A or 2B, then both act at once.

    What could have been said is there too, as candidates that were not played.
    """
    name = f"x:{number}"
    world = 1 + first

    def call(agent: str, step: int, action: int, prompt: list[int], parents=()):
        made = []
        for option in (0, 1):
            one = turn(agent, episode=name, path=(step, agent == RIGHT, option), prompt=prompt,
                       tokens=[10 + option])  # fmt: skip
            one.candidate, one.chosen, one.parents = option, option == action, tuple(parents)
            one.observation = f"state {world if step else 0}"
            made.append(one)
        return made

    opening = call(LEFT, 0, first, [5]) + call(RIGHT, 0, 0, [6])
    told = [t.id for t in opening if t.chosen]
    ending = call(LEFT, 1, second[0], [5, 20 + world], told)
    ending += call(RIGHT, 1, second[1], [6, 20 + world], told)
    made = episode(number, opening + ending, {"team": float(TWO_STEP.payoff[world][second])})
    made.id = name
    return made


def uniform_games() -> list[Episode]:
    every = [(a, (b, c)) for a in (0, 1) for b in (0, 1) for c in (0, 1)]
    return [game(number, *actions) for number, actions in enumerate(every)]


@pytest.mark.parametrize("mixer", leave_to_evidence(["vdn", "qmix"], keep=[]))
def test_episodes_of_two_stages_with_equal_ids_are_told_apart(model_folder, mixer):
    """One agent, one turn: 10 earns 0 in the first stage, 11 earns 1 in the second."""

    def said(token: int, reward: float) -> Episode:
        one = turn(LEFT, episode="1:x:0", tokens=[token])
        made = episode(0, [one], {"team": reward})
        made.id = "1:x:0"
        return made

    critic = critic_of(model_folder, mixer, lr=3e-3)
    games = [said(10, 0.0), said(11, 1.0)]
    critic.remember([(game, [game.rewards["team"]]) for game in games])
    for _ in range(25):
        critic.learn(gamma=1.0, batch=2, updates=10, copy_every=1)
    rows = critic._make_rows(list(critic.episodes))
    assert critic._team_values(rows).tolist() == pytest.approx([0.0, 1.0], abs=0.02)


def played_by(critic: ReplayCritic, rule: VdnValue) -> float:
    """What the team earns when every agent plays its best candidate."""
    choose = EpsilonGreedy(rule, critic)

    def action(made: Episode, agent: str, step: int) -> int:
        turns = [t for t in made.turns if t.agent == agent and t.path[0] == step]
        chosen = asyncio.run(choose(turns, explores=False, random=Random(0)))
        return int(chosen.candidate)

    first = action(game(0, 0, (0, 0)), LEFT, 0)
    after = game(0, first, (0, 0))
    second = action(after, LEFT, 1), action(after, RIGHT, 1)
    return float(TWO_STEP.payoff[1 + first][second])


@pytest.mark.evidence
def test_the_two_step_game_on_utterances(model_folder):
    """1803.11485, every joint action alike often: the monotone mix finds the 8 that a sum cannot.

    The best sum is off by 1.5 in each of the four outcomes of 2B, a mean square of .5625 over all.
    """
    critics = {
        "vdn": critic_of(model_folder, lr=1e-2),
        "qmix": critic_of(model_folder, "qmix", lr=1e-2),
    }
    rules = {
        "vdn": VdnValue(candidates=2, batch=8, updates=20, copy_every=8),
        "qmix": QmixValue(candidates=2, batch=8, updates=40, copy_every=8),
    }
    for _ in range(8):
        found = {name: rule.fit(uniform_games(), critics[name]) for name, rule in rules.items()}
    assert found["vdn"]["loss"] > 0.5
    assert found["qmix"]["loss"] < 0.4
    assert found["qmix"]["replay"] == 64
    assert played_by(critics["qmix"], rules["qmix"]) == 8.0


def test_the_reward_of_a_joint_step_and_the_outcome_with_the_last():
    made = game(0, 1, (1, 1))
    made.turns[0].rewards = {"own": 9.0}  # not played: action 1 was
    made.turns[1].rewards = {"own": 0.25}
    assert VdnValue().step_rewards(made) == [0.25, 8.0]
    assert VdnValue().step_rewards(episode(0, [], {"team": 1.0})) == []


def test_epsilon_falls_evenly_and_evaluations_play_the_best():
    rule = VdnValue(epsilon=1.0, epsilon_end=0.2, epsilon_steps=4)
    found = []
    for step in range(6):
        found.append(rule.epsilon_now)
        rule.after_step(step + 1)
    assert found == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2, 0.2])
    values = [0.1, 0.5, 0.5]
    assert rule.best(values, explores=False, random=Random(0)) == 1, "the first of equal ones"
    drawn = [rule.best(values, explores=True, random=Random(seed)) for seed in range(3000)]
    share = np.mean([number == 1 for number in drawn])
    assert share == pytest.approx(0.8 + 0.2 / 3, abs=0.03)
    again = VdnValue(epsilon=1.0, epsilon_end=0.2, epsilon_steps=4)
    again.load_state_dict(rule.state_dict())
    assert again.epsilon_now == rule.epsilon_now


def test_the_copy_moves_only_every_so_many_episodes(model_folder):
    critic = critic_of(model_folder)
    before = [p.clone() for p in critic.copied.parameters()]
    games = uniform_games()
    options = {"gamma": 0.9, "batch": 4, "updates": 2, "copy_every": 12}
    critic.remember([(e, [0.0, 1.0]) for e in games])
    critic.learn(**options)
    assert all(torch.equal(a, b) for a, b in zip(before, critic.copied.parameters(), strict=True))
    critic.remember([(e, [0.0, 1.0]) for e in games])
    critic.learn(**options)
    for a, b in zip(critic.whole.parameters(), critic.copied.parameters(), strict=True):
        assert torch.equal(a, b)


def test_the_oldest_episodes_give_way_and_a_saved_critic_goes_on_bit_for_bit(
    model_folder, tmp_path
):
    one, other = (
        critic_of(model_folder, "qmix", buffer=5),
        critic_of(model_folder, "qmix", buffer=5),
    )
    games = uniform_games()
    options = {"gamma": 0.9, "batch": 3, "updates": 2, "copy_every": 7}
    one.remember([(e, [0.0, e.rewards["team"]]) for e in games])
    assert [e.id for e, _ in one.episodes] == [e.id for e in games[3:]]
    one.learn(**options)
    one.save(tmp_path)
    other.load(tmp_path)
    assert [(e.id, earned) for e, earned in other.episodes] == [
        (e.id, earned) for e, earned in one.episodes
    ]
    assert one.learn(**options) == other.learn(**options)
    for a, b in zip(one.whole.parameters(), other.whole.parameters(), strict=True):
        assert torch.equal(a, b)


def test_with_distil_the_best_candidate_is_imitated_and_else_nobody_is_trained(model_folder):
    critic, games = critic_of(model_folder), uniform_games()
    rule = VdnValue(candidates=2, batch=8, updates=50, copy_every=8)
    rule.fit(games, critic)
    asyncio.run(critic.annotate(games))
    rule.credit(games)
    assert all(t.advantages is None for e in games for t in e.turns)
    VdnValue(candidates=2, distil=True).credit(games)
    for e in games:
        for step in (0, 1):
            for agent in (LEFT, RIGHT):
                pair = [t for t in e.turns if t.agent == agent and t.path[0] == step]
                better = max(pair, key=lambda t: t.training.preference)
                assert all((t.advantages == (t is better)).all() for t in pair)


@pytest.mark.evidence
def test_weights_stay_while_a_critic_learns_what_to_play(model_folder, tmp_path):
    """A whole run: it is not stopped for want of updates, and evaluations choose too."""
    config = case(model_folder, "vdn_value", trainer={"steps": 5, "idle_steps": 2})
    config["algorithm"] = {"name": "vdn_value", "candidates": 3, "epsilon_steps": 4}
    config["evaluation"] = {"tasks": 2, "samples": 2, "k": 2}
    last = train(config, tmp_path / "run").last
    assert last["step"] == 5
    assert last["critic/updates"] == 8
    assert last["algorithm/epsilon"] == pytest.approx(0.05)
    assert not any(name.endswith("/grad_norm") for name in last)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"workflow": {"name": "tests/toy.py:crew", "candidates": 2}},
            "draws some of its own; write workflow.candidates=1, or name another",
        ),
        ({"algorithm": {"name": "vdn_value", "candidates": 1}}, "greater than or equal to 2"),
        ({"critics": {}}, "critics.mixer: vdn_value needs this critic"),
    ],
)
def test_what_cannot_be_is_one_line(model_folder, tmp_path, changes, told):
    config = case(model_folder, "vdn_value") | changes
    with pytest.raises(ConfigError) as error:
        validate(load(write(tmp_path / "run.yaml", config)))
    assert told in str(error.value)
