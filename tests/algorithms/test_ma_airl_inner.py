"""MA-AIRL around other algorithms: exact credit with known rewards, whole runs, and refusals."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean, stdev

import numpy as np
import pytest

from rolecall.algorithms.ma_airl import MaAirl
from rolecall.config.load import load
from rolecall.config.schema import Named
from rolecall.setup.algorithms import make_algorithms
from rolecall.storage.run_folder import RunFolder
from tests.toy import EXPERTS, command, crew_config, episode, turn, write

# (agent, number of tokens, what the discriminator pays, what a penalty takes) by attempt, in order
PLAYED = [
    [("left", 2, 1.5, 0.0), ("right", 1, -0.5, 0.0), ("left", 3, 0.25, -0.5)],
    [("left", 1, -2.0, 0.0), ("right", 3, 1.0, -0.25)],
    [("right", 2, 0.75, 0.0), ("left", 1, 2.0, 0.0), ("right", 1, -1.25, 0.0)],
]
KINDS = ["grpo", "rloo", "gspo", "dr_grpo", "reinforce_pp", "reinforce_pp_baseline", "drmas"]


def joined(tmp_path, named):
    """The algorithm that a config with `inner` trains with."""
    algorithm = {"name": "ma_airl", "experts": str(EXPERTS), "inner": named}
    config = crew_config(Path("nowhere"), algorithm=algorithm)
    return make_algorithms(load(write(tmp_path / "c.yaml", config)))["first"]


def attempts(outcome=0.0):
    """Three attempts of ragged turns of two agents; what the world pays must not matter."""
    played = []
    for number, turns in enumerate(PLAYED):
        made = []
        for place, (agent, length, pay, penalty) in enumerate(turns):
            one = turn(agent, episode=f"x:{number}", path=(place,), tokens=list(range(length)))
            one.training.inner_reward, one.rewards = pay, ({"invalid": penalty} if penalty else {})
            one.parents = tuple(other.id for other in made)
            one.training.values = np.array([0.3, -0.2, 0.6], dtype=np.float32)[:length]
            one.training.team_values = {"left": 0.1 * place, "right": -0.2 * place}
            made.append(one)
        played.append(episode(number, made, {"team": outcome * number, "left": -outcome}))
    return played


def rows(found=None):
    """[(attempt, agent, length, r)] of all turns, in order."""
    return [
        (number, agent, length, pay + penalty)
        for number, turns in enumerate(PLAYED)
        for agent, length, pay, penalty in turns
    ]


def own_mean(agent):
    return fmean(r for _, name, _, r in rows() if name == agent)


def spread_of(values):
    return stdev(values) + 1e-6


def wanted(name):
    """Of every turn, by the formulas of ALGORITHMS 2.1 to 2.7 with an outcome of 0."""
    by = {(n, a): fmean(r for m, b, _, r in rows() if (m, b) == (n, a)) for n, a, _, _ in rows()}
    found = []
    for number, agent, _, r in rows():
        mine = [score for (_, other), score in by.items() if other == agent]
        if name in ("grpo", "gspo", "dr_grpo"):  # outcomes are equal: only own rewards are left
            found.append(r - own_mean(agent))
        elif name == "drmas":
            all_of = [s for _, other, _, s in rows() if other == agent]
            found.append((r - fmean(all_of)) / spread_of(all_of))
        elif name == "rloo":
            others = [s for (n, other), s in by.items() if other == agent and n != number]
            found.append(r - fmean(others))
        else:
            found.append(r - (fmean(mine) if name.endswith("baseline") else 0.0))
    if name.startswith("reinforce"):  # one whitening over the tokens of the policy
        tokens = [a for a, (_, _, n, _) in zip(found, rows(), strict=True) for _ in range(n)]
        centre = 0.0 if name.endswith("baseline") else fmean(tokens)
        found = [(a - centre) / (stdev(tokens) + 1e-8) for a in found]
    return found


@pytest.mark.parametrize("name", KINDS)
def test_group_relative_credit_of_what_the_discriminator_pays(tmp_path, name):
    options = {"kl": 0.0} if name.startswith("reinforce") else {}
    algorithm = joined(tmp_path, {"name": name, **options})
    for outcome in (0.0, 100.0):
        played = attempts(outcome)
        algorithm.credit(played)
        found = [t.advantages for e in played for t in e.turns]
        assert [len(a) for a in found] == [n for _, _, n, _ in rows()]
        for advantages, number in zip(found, wanted(name), strict=True):
            assert advantages == pytest.approx(number, abs=1e-6)
        assert played[1].rewards == {"team": outcome, "left": -outcome}


def test_without_inner_it_is_dr_mas_to_the_bit(tmp_path):
    one, other = attempts(7.0), attempts(0.0)
    MaAirl(experts="f").credit(one)
    joined(tmp_path, "drmas").credit(other)
    for a, b in zip(one, other, strict=True):
        for x, y in zip(a.turns, b.turns, strict=True):
            assert x.advantages.tolist() == y.advantages.tolist()


def gae(rewards, values, lam):
    """A_l = sum over k >= l of lam^(k - l) delta_k, with gamma 1."""
    after = [*values[1:], 0.0]
    deltas = [r + v2 - v for r, v2, v in zip(rewards, after, values, strict=True)]
    places = range(len(deltas))
    return [sum(lam ** (k - first) * deltas[k] for k in places[first:]) for first in places]


def test_ppo_chains_what_the_discriminator_pays_from_turn_to_turn(tmp_path):
    algorithm = joined(tmp_path, {"name": "ppo", "lam": 0.5, "whiten": False, "epochs": 2})
    assert (algorithm.critic, algorithm.epochs) == ("agent", 2)
    assert algorithm.critics == {"agent": False, "discriminator": True}
    played = attempts(100.0)
    algorithm.credit(played)
    for turns, one in zip(PLAYED, played, strict=True):
        for agent in ("left", "right"):
            rewards, values = [], []
            for name, length, pay, penalty in turns:
                if name == agent:
                    rewards += [0.0] * (length - 1) + [pay + penalty]
                    values += [0.3, -0.2, 0.6][:length]
            mine = [t for t in one.turns if t.agent == agent]
            advantages = np.concatenate([t.advantages for t in mine])
            assert advantages == pytest.approx(gae(rewards, values, 0.5), abs=1e-6)
            returns = np.concatenate([t.returns for t in mine])
            assert returns == pytest.approx(advantages + values, abs=1e-6)


class Asked:
    """A team critic that keeps what it is taught."""

    agents = ("left", "right")

    def fit(self, episodes, targets, *, epochs):
        self.targets = targets
        return {"loss": 0.0}


def test_mappo_and_its_critic_read_what_the_discriminator_pays(tmp_path):
    algorithm = joined(tmp_path, {"name": "mappo", "lam": 0.5, "whiten": False})
    assert algorithm.critics == {"team": True, "discriminator": True}
    played, critic = attempts(100.0), Asked()
    algorithm.credit(played)
    algorithm.fit(played, critic)
    for turns, one, targets in zip(PLAYED, played, critic.targets, strict=True):
        rewards = [pay + penalty for _, _, pay, penalty in turns]
        for column, scale in enumerate((0.1, -0.2)):
            values = [scale * place for place in range(len(turns))]
            advantages = gae(rewards, values, 0.5)
            assert targets[:, column] == pytest.approx(np.add(advantages, values), abs=1e-6)
            for made, number in zip(one.turns, advantages, strict=True):
                if made.agent == critic.agents[column]:
                    assert made.advantages == pytest.approx(number, abs=1e-6)


def config_of(folder, named, **critics):
    scorer = {"base": str(folder), "optimizer": {"lr": 1e-2}}
    return crew_config(
        folder,
        algorithm={"name": "ma_airl", "experts": str(EXPERTS), "inner": named},
        critics={"discriminator": scorer} | critics,
        trainer={"steps": 2, "save_every": 2},
        evaluation={"tasks": 0},
    )


def losses(run, name):
    return [record[name] for record in RunFolder(run).read_metrics() if record["kind"] == "step"]


EVIDENCE = pytest.mark.evidence


@pytest.mark.evidence
@pytest.mark.parametrize(
    ("named", "critics", "saved"),
    [
        pytest.param({"name": "rloo", "count": "turn"}, {}, set(), marks=EVIDENCE),
        pytest.param({"name": "ppo", "epochs": 1}, {"agent": {}}, set(), marks=EVIDENCE),
        ({"name": "mappo", "epochs": 1}, {"team": {}}, {"critic.team.first"}),
    ],
)
def test_a_run_trains_on_it(model_folder, tmp_path, named, critics, saved):
    if "team" in critics:
        critics["team"] = {"base": str(model_folder), "optimizer": {"lr": 1e-3}}
    config = write(tmp_path / "c.yaml", config_of(model_folder, named, **critics))
    run = tmp_path / "run"
    assert command("train", config, "--output", run) == 0
    assert all(np.isfinite(losses(run, "discriminator/loss")))
    assert all(np.isfinite(losses(run, "discriminator/taken_for_expert/agents")))
    folders = {path.name for path in (run / "checkpoints/step-2").iterdir() if path.is_dir()}
    assert folders == {"a", "b", "critic.discriminator.first"} | saved
    records = RunFolder(run).read_metrics()
    assert ("critic/loss" in records[0]) == bool(saved)
    assert records[0]["agent/first/loss"] != records[1]["agent/first/loss"]
    assert command("train", run, "trainer.steps=3") == 0  # it goes on from all of them
    assert len(losses(run, "discriminator/loss")) == 3


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"inner": "sft"}, "algorithm.inner: sft: it does not train on rewards of played turns"),
        ({"inner": "at_grpo"}, "algorithm.inner: at_grpo: it does not train on rewards of played"),
        ({"inner": "dapo"}, "algorithm.inner: dapo: it does not train on rewards of played turns"),
        ({"inner": "read"}, "algorithm.inner: read: it does not train on rewards of played turns"),
        ({"inner": "counterfactual"}, "algorithm.inner: counterfactual: it does not train on"),
        ({"inner": "ma_airl"}, "algorithm.inner: ma_airl: it does not train on rewards of played"),
        ({"inner": "mapo"}, "algorithm.inner.name: there is no algorithm 'mapo'; nearest"),
        ({"inner": {"name": "ppo", "lamb": 1}}, "algorithm.inner.lamb: unknown key; did you mean"),
        ({"inner": {"name": "ppo", "lam": 2}}, "algorithm.inner.lam: Input should be less than or"),
        ({"inner": "rloo", "kl": 0.1}, "kl is of the algorithm that trains; write it in inner"),
        (
            {"inner": "mappo"},
            "critics.team: ma_airl needs this critic; set critics.team.base=MODEL",
        ),
        ({"inner": "ppo"}, "critics.agent: ma_airl needs this critic; set critics.agent={}"),
    ],
)
def test_what_does_not_fit_is_one_line(model_folder, tmp_path, capsys, changes, said):
    config = config_of(model_folder, None)
    config["algorithm"] |= changes
    file = write(tmp_path / "c.yaml", config)
    assert command("train", file, "--output", tmp_path / "run") == 2
    error = capsys.readouterr().err
    assert len(error.strip().splitlines()) == 1, error
    assert said in error
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("learner", ["fsdp", "replicated"])
@pytest.mark.parametrize("inner", [None, "rloo"])
def test_learner_ranks_are_refused_in_one_line(model_folder, tmp_path, capsys, learner, inner):
    config = config_of(model_folder, inner) | {"learner": {"name": learner, "ranks": 2}}
    config["engine"] = {"separate_weights": True}
    file = write(tmp_path / "c.yaml", config)
    assert command("train", file, "--output", tmp_path / "run") == 2
    lines = capsys.readouterr().err.strip().splitlines()
    wanted = (
        "critics.discriminator reads the model of {}, which must be in this process; write local"
    )
    assert len(lines) == 2  # one for each policy
    for line, policy in zip(lines, ("a", "b"), strict=True):
        assert "learner.name: " + wanted.format(policy) in line


def test_check_says_which_algorithm_it_is_around(model_folder, tmp_path, capsys):
    team = {"team": {"base": str(model_folder)}}
    config = write(tmp_path / "c.yaml", config_of(model_folder, "mappo", **team))
    assert command("check", config, "--json") == 0
    agents = json.loads(capsys.readouterr().out)["agents"]
    assert {agent["algorithm"] for agent in agents.values()} == {"ma_airl (mappo)"}
    assert {agent["critic"] for agent in agents.values()} == {"team, discriminator"}


def test_settings_of_the_inner_algorithm_stay(tmp_path):
    named = {"name": "mappo", "epochs": 3, "clip_low": 0.1}
    algorithm = joined(tmp_path, named)
    assert (algorithm.epochs, algorithm.clip_low, algorithm.experts) == (3, 0.1, str(EXPERTS))
    assert joined(tmp_path, "mappo").epochs == 4
    assert joined(tmp_path, "grpo").agg == "turn_mean"
    assert joined(tmp_path, "dr_grpo").turn_length == 8  # the largest max_tokens of the team
    assert MaAirl(inner=Named(name="ppo")).inner.name == "ppo"
