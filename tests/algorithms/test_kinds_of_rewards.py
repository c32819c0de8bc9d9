"""What is earned, paid, learned and estimated are told apart by whoever reads them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from statistics import fmean, stdev

import pytest

from rolecall.algorithms.best_of import best_attempts, is_right
from rolecall.algorithms.counterfactual import Counterfactual
from rolecall.algorithms.grpo import Grpo
from rolecall.algorithms.ma_airl import MaAirl
from rolecall.algorithms.read import episode_return
from rolecall.config.data_set_export import CollectConfig
from rolecall.core.types import Episode
from rolecall.demonstrations.data_set import make_rows
from tests.algorithms.small import said, singles
from tests.toy import episode, turn


def estimated() -> list[Episode]:
    """A critic expects most of the attempt that is worth nothing."""
    attempts = singles([0.0, 1.0])
    for number, (e, estimate) in enumerate(zip(attempts, [5.0, -0.5], strict=True)):
        e.turns[0].training.estimate = estimate
        e.turns[0].tokens[:] = 10 + number
    return attempts


def collected(episodes: list[Episode], **options) -> list[dict]:
    return make_rows(episodes, CollectConfig(**options), tokenizers={"p": "print"})


def test_a_critics_estimate_is_not_earned():
    first, second = estimated()
    assert (first.total(first.turns[0]), second.total(second.turns[0])) == (0.0, 1.0)
    assert not first.turns[0].is_scored
    assert is_right(second.turns[0], 0.0), "without an own reward it counts as right"
    assert episode_return(first) == 0.0


def test_collect_keeps_what_was_earned_and_not_what_a_critic_expected():
    [row] = collected(estimated(), least=1.0)
    assert row["completion_ids"][0] == 11
    [row] = collected(estimated(), best_of=1)
    assert row["completion_ids"][0] == 11
    [pair] = collected(estimated(), pairs=True)
    assert (pair["chosen_ids"][0], pair["rejected_ids"][0]) == (11, 10)


def test_an_inner_reward_is_not_earned_either():
    first, second = singles([0.0, 1.0])
    first.turns[0].training.inner_reward = 5.0
    [(best, _)] = best_attempts([(e, e.turns[0]) for e in (first, second)], 1)
    assert best is second


def paid_by(workflow: list[float]) -> list[Episode]:
    """One turn an episode, paid by the workflow in place of an outcome."""
    attempts = singles([0.0] * len(workflow))
    for e, amount in zip(attempts, workflow, strict=True):
        e.rewards = {}
        e.turns[0].pay("own", amount)
    return attempts


def test_ma_airl_reads_no_pay_and_no_reward_of_the_world():
    episodes = paid_by([1.0, 1.0, 0.0])
    for e, inner, world in zip(episodes, [1.5, 0.0, -1.5], [0.0, 2.0, 0.0], strict=True):
        e.turns[0].training.inner_reward, e.turns[0].world_rewards = inner, {"step": world}
    MaAirl().credit(episodes)
    assert said(episodes, "solver") == pytest.approx([1.0, 0.0, -1.0], abs=1e-5)
    episodes[0].turns[0].rewards = {"invalid": -0.5}
    MaAirl().credit(episodes)
    scores = [1.0, 0.0, -1.5]
    expected = [(score - fmean(scores)) / (stdev(scores) + 1e-6) for score in scores]
    assert said(episodes, "solver") == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("team", [["solver"], ["solver", "verifier"]])
def test_grpo_divides_pay_by_its_spread_as_an_outcome(team):
    """However many agents are trained; the own rewards of single actions are not divided."""
    pay = [1.0, 0.2, 0.0]
    episodes = paid_by(pay)
    rule = Grpo()
    rule.join_team(team)
    rule.credit(episodes)
    expected = [(amount - fmean(pay)) / (stdev(pay) + 1e-6) for amount in pay]
    assert said(episodes, "solver") == pytest.approx(expected, abs=1e-5)


def test_in_a_team_each_paid_agent_is_a_sample_of_its_own():
    """Samples 1, 0, 0, 0 of two agents in two attempts: mean .25, spread .5."""
    episodes = []
    for i, amounts in enumerate([(1.0, 0.0), (0.0, 0.0)]):
        turns = [turn(name, episode=f"{i}", path=(k,)) for k, name in enumerate("ab")]
        for one, amount in zip(turns, amounts, strict=True):
            one.pay("own", amount)
        episodes.append(episode(i, turns, {}))
    Grpo().credit(episodes)
    assert said(episodes, "a") == pytest.approx([1.5, -0.5], abs=1e-5)
    assert said(episodes, "b") == pytest.approx([-0.5, -0.5], abs=1e-5)


@pytest.mark.parametrize("kind", ["payments", "world_rewards"])
def test_a_counterfactual_compares_what_replays_were_paid_too(kind):
    """Every replay is paid the same, so nothing depends on what the turn said."""
    algorithm = Counterfactual(fraction=1.0, scale=False)

    def paid(amount: float) -> Episode:
        [made] = singles([0.0])
        setattr(made.turns[0], kind, {"own": amount})
        return made

    def probed(amount: float, replayed: float) -> float:
        async def replay(of, swap):
            return replace(paid(replayed), id="again")

        made = paid(amount)
        asyncio.run(algorithm.prepare([made], replay))
        algorithm.credit([made])
        return said([made], "solver")[0]

    assert probed(1.0, 1.0) == 0.0
    assert probed(1.0, 0.25) == 0.75


def test_all_that_a_turn_was_given_is_shown_by_name():
    one = turn(rewards={"invalid": -0.1})
    one.pay("own", 1.0)
    one.world_rewards, one.training.inner_reward, one.training.estimate = {"step": 0.5}, 2.0, 3.0
    assert one.score == pytest.approx(1.4)
    assert one.all_rewards == {
        "discriminator": 2.0, "advantage": 3.0, "invalid": -0.1, "step": 0.5, "own": 1.0,
    }  # fmt: skip
