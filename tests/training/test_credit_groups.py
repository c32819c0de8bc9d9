"""Agents whose settings differ in the loss alone are credited together."""

from __future__ import annotations

import asyncio
import math
import pickle
from collections.abc import Sequence

import numpy as np
import pytest

from rolecall.algorithms.base import Algorithm
from rolecall.config.load import load
from rolecall.core.seeding import derive_seed
from rolecall.core.types import Episode, Turn
from rolecall.runtime.call_tree import task_factory
from rolecall.setup.algorithms import make_algorithms
from rolecall.setup.build import build
from rolecall.setup.plan import validate
from rolecall.storage.run_folder import RunFolder
from rolecall.training import train_step
from rolecall.training.algorithm_group import group_agents
from rolecall.training.collector import Collector
from rolecall.training.run import Run
from tests.algorithms.small import NAMES, algorithm, team_step
from tests.algorithms.test_every_algorithm import case
from tests.toy import EXPERTS, episode, turn, write

OWN_CLIP = {"clip_high": 0.2001}


def built(config: dict, tmp_path) -> Run:
    return build(validate(load(write(tmp_path / "c.yaml", config))))


def pair_of_agents(outcomes: Sequence[float], own: dict[str, list[float]]) -> list[Episode]:
    """One turn of each agent an episode, two tokens long; `own` rewards by agent."""
    made = []
    for i, outcome in enumerate(outcomes):
        turns = [
            turn(
                agent,
                episode=f"{i}",
                path=(k,),
                policy="a",
                tokens=[7, i],
                rewards={"own": rewards[i]},
            )
            for k, (agent, rewards) in enumerate(own.items())
        ]
        made.append(episode(i, turns, {"team": outcome}))
    return made


def advantages_of(episodes: list[Episode], agent: str) -> list[float]:
    return [float(t.advantages[0]) for e in episodes for t in e.turns if t.agent == agent]


OUTCOMES = [1.0, 0.0, 1.0]
OWN = {"left": [-0.5, 0.0, 0.5], "right": [1.5, -1.5, -0.5]}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"name": "reinforce_pp", "kl": 0.0}, [-0.064, -0.451, 0.708]),
        ({"name": "grpo"}, [0.077, -1.155, 1.077]),
    ],
)
@pytest.mark.parametrize("own_clip", [False, True])
def test_a_clip_of_its_own_changes_no_agents_advantages(
    model_folder, tmp_path, options, expected, own_clip
):
    config = case(model_folder, "grpo")
    config["algorithm"] = options
    if own_clip:
        config["team"]["second"]["algorithm"] = {**options, **OWN_CLIP}
    run = built(config, tmp_path)
    names = {"left": "first", "right": "second"}
    episodes = pair_of_agents(OUTCOMES, {names[agent]: own for agent, own in OWN.items()})
    asyncio.run(train_step.credit(run, episodes))
    assert advantages_of(episodes, "first") == pytest.approx(expected, abs=1e-3)


def test_two_ways_to_pair_on_one_policy_keep_to_their_agents(model_folder, tmp_path):
    """Three answers with different scores: three pairs of all, one of best and worst."""
    for first, second in (("all", "best_worst"), ("best_worst", "all")):
        config = case(model_folder, "dpo")
        config["team"]["first"]["algorithm"] = {"name": "dpo", "pair_up": first}
        config["team"]["second"]["algorithm"] = {"name": "dpo", "pair_up": second}
        run = built(config, tmp_path)
        answers = {"first": [0.0, 1.0, 2.0], "second": [0.0, 1.0, 2.0]}
        episodes = pair_of_agents([0.0] * 3, answers)
        for part in run.algorithm_groups:
            part.algorithm.credit(train_step.view(episodes, part, run))
        chosen = train_step.trained_turns(episodes, "a", run.get_step_algorithm("a"))
        found = [better.agent for better, _ in train_step._pairs(run, chosen)]
        number = {"all": 3, "best_worst": 1}
        assert {name: found.count(name) for name in answers} == {
            "first": number[first],
            "second": number[second],
        }


def seed_of_order(first: str) -> int:
    """A seed of the trainer with which step 1 updates this policy before the other one."""
    for seed in range(100):
        order = ["a", "b"]
        np.random.default_rng(derive_seed(seed, "order", 1)).shuffle(order)
        if order[0] == first:
            return seed
    raise AssertionError("no seed gives this order")


def updated(config: dict, tmp_path, *, ends: dict[str, str], stale: str = "") -> list[Episode]:
    """Collect, credit and update once with the run's own parts, policy a first.

    `ends`: why the turns of an agent ended; `stale`: the agent whose turns are too old to train.
    """
    config["trainer"] |= {"seed": seed_of_order("a"), "steps": 1}
    run = built(config, tmp_path)
    folder = RunFolder(tmp_path / "run")
    folder.start(run.config)

    async def main() -> list[Episode]:
        asyncio.get_running_loop().set_task_factory(task_factory)
        rollout = await Collector(run, folder).collect(1)
        turns = [t for e in rollout.episodes for t in e.turns]
        for t in turns:
            t.finish = ends.get(t.agent, t.finish)
        await train_step.credit(run, rollout.episodes)
        for t in turns:
            t.advantages = None if t.agent == stale else t.advantages
        await train_step.update(run, rollout.episodes, step=1, apart=False)
        return rollout.episodes

    return asyncio.run(main())


def log_ratio(one: Turn) -> float:
    return float((one.training.new_logprobs.astype(np.float64) - one.training.prox_logprobs).sum())


@pytest.mark.parametrize(
    ("own", "ends", "stale"),
    [
        (None, {}, ""),
        ({"clip_high": 0.2001}, {}, ""),  # of the loss: one object for both
        ({"lam": 0.5}, {}, ""),  # of credit: an object of its own, which must know of the other
        ({}, {"first": "length", "second": "stop", "last": "stop"}, ""),
        ({}, {}, "first"),
    ],
)
def test_happo_weighs_a_waiting_turn_by_all_that_the_updated_policy_changed(
    model_folder, tmp_path, own, ends, stale
):
    """The factor is recomputed from the learners' log-probs before and after the update.

    Turns of the updated policy count also where its own loss leaves them out.
    """
    config = case(model_folder, "happo")
    config["algorithm"] = {"name": "happo", "factor": "episode", "clamp": False}
    config["algorithm"]["mask_truncated"] = bool(ends)
    if own:
        config["team"]["last"]["algorithm"] = {**config["algorithm"], **own}
    for e in updated(config, tmp_path, ends=ends, stale=stale):
        moved = [log_ratio(t) for t in e.turns if t.policy == "a"]
        assert len(moved) == 2
        assert all(abs(change) > 1e-4 for change in moved)
        assert [t.weight for t in e.turns if t.policy == "a"] == [1.0, 1.0]
        [last] = [t for t in e.turns if t.policy == "b"]
        assert last.weight == pytest.approx(math.exp(sum(moved)), rel=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_agents_that_differ_in_a_setting_of_the_loss_are_one_group(name):
    plain = algorithm(name)
    outside = type(plain).loss_fields() - plain.read_by_credit
    for field in sorted(outside):
        other = plain.model_copy(update={field: "another value"})
        assert len(group_agents({"a": plain, "b": other})) == 1, field
    inside = sorted(type(plain).model_fields.keys() - outside)
    for field in inside:
        other = plain.model_copy(update={field: "another value"})
        assert len(group_agents({"a": plain, "b": other})) == 2, field


def test_the_coefficient_of_the_kl_splits_credit_only_where_it_is_part_of_the_reward():
    one, other = algorithm("ppo", kl=0.1), algorithm("ppo", kl=0.2)
    assert len(group_agents({"a": one, "b": other})) == 1
    one, other = (algorithm("ppo", kl=kl, kl_in="reward") for kl in (0.1, 0.2))
    assert len(group_agents({"a": one, "b": other})) == 2


def test_two_algorithms_inside_ma_airl_are_one_group_where_their_credit_is_equal(tmp_path):
    config = case(tmp_path, "ma_airl")
    plain = {"name": "ma_airl", "experts": str(EXPERTS), "inner": {"name": "rloo"}}
    config["algorithm"] = plain
    config["team"]["last"]["algorithm"] = {**plain, "inner": {"name": "rloo", **OWN_CLIP}}
    made = make_algorithms(load(write(tmp_path / "c.yaml", config)))
    assert [made[agent].clip_high for agent in ("first", "last")] == [0.2, 0.2001]
    assert len(group_agents(made)) == 1
    again = pickle.loads(pickle.dumps(made["last"]))
    assert again.shares_credit(made["last"])
    assert again.clip_high == 0.2001


def recorded(kind: type[Algorithm]) -> tuple[type[Algorithm], set[str]]:
    """A subclass that notes which of its fields are read."""
    read: set[str] = set()

    def look_up(self, name):
        if name in kind.model_fields:
            read.add(name)
        return kind.__getattribute__(self, name)

    return type(kind.__name__, (kind,), {"__getattribute__": look_up}), read


class OneForAll:
    """A critic that is taught nothing and knows the agents of the step."""

    agents = ("solver", "verifier")

    def fit(self, episodes, targets, *, epochs):
        return {}

    learn = remember = lambda self, *arguments, **options: {}


@pytest.mark.parametrize("name", NAMES)
def test_credit_reads_no_setting_that_is_declared_to_be_outside_of_it(name):
    """Whatever credit and what comes after an update read must split the agents."""
    plain = algorithm(name)
    kind, read = recorded(type(plain))
    made = kind(**{field: getattr(plain, field) for field in plain.model_fields_set})
    read.clear()
    episodes = team_step()
    made.credit(episodes)
    for policy in ("a", "b"):
        made.after_update(policy, episodes)
    made.pairs([t for e in episodes for t in e.turns if t.advantages is not None])
    made.fit(episodes, OneForAll())
    made.keep_group(episodes[:4])
    made.after_step(1)
    made.metrics()
    assert not read & (type(plain).loss_fields() - plain.read_by_credit)
