"""Known answers of GRPO and Dr. MAS, and what must hold for any group-relative credit."""

from __future__ import annotations

import copy
import random

import numpy as np
import pytest

from rolecall.algorithms.drmas import DrMas
from rolecall.algorithms.groups import compare, exact_mean, leave_one_out_mean
from rolecall.algorithms.grpo import Grpo
from tests.algorithms.small import said, singles
from tests.toy import episode, turn


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ([1, 1, 0, 0], [0.866024, 0.866024, -0.866024, -0.866024]),
        ([1, 0, 0, 0], [1.499997, -0.499999, -0.499999, -0.499999]),
        ([1, 0], [0.707106, -0.707106]),
        ([1] * 7 + [0], [0.353552] * 7 + [-2.474867]),
    ],
)
def test_grpo_known_answers(rewards, expected):
    episodes = singles(rewards)
    Grpo().credit(episodes)
    assert said(episodes, "solver") == pytest.approx(expected, abs=1.5e-6)
    assert all(len(t.advantages) == 2 for e in episodes for t in e.turns)


def test_grpo_zero_sum_game_works_because_owners_are_separate_samples():
    episodes = [
        episode(i, [turn("a", episode=f"{i}"), turn("b", episode=f"{i}", path=(1,))], rewards)
        for i, rewards in enumerate([{"a": 1, "b": -1}, {"a": -1, "b": 1}])
    ]
    Grpo().credit(episodes)
    assert said(episodes, "a") == pytest.approx([0.8660, -0.8660], abs=1e-4)
    assert said(episodes, "b") == pytest.approx([-0.8660, 0.8660], abs=1e-4)


def winning_once_losing_twice():
    winner = episode(0, [turn(episode="A")], {"team": 1})
    loser = episode(1, [turn(episode="B"), turn(episode="B", path=(1,))], {"team": 0})
    return [winner, loser]


def test_drmas_counts_every_call_as_published():
    episodes = winning_once_losing_twice()
    DrMas().credit(episodes)
    assert said(episodes, "solver") == pytest.approx([1.1547, -0.5773, -0.5773], abs=1e-4)


def test_drmas_can_count_an_episode_once():
    episodes = winning_once_losing_twice()
    DrMas(count="episode_agent").credit(episodes)
    assert said(episodes, "solver") == pytest.approx([0.7071, -0.7071, -0.7071], abs=1e-4)


def pairs(solver: list[float], verifier: list[float], **rewards):
    return [
        episode(
            i,
            [turn("solver", episode=f"{i}"), turn("verifier", episode=f"{i}", path=(1,))],
            {"solver": s, "verifier": v},
        )
        for i, (s, v) in enumerate(zip(solver, verifier, strict=True))
    ]


def test_drmas_compares_an_agent_with_itself_only():
    episodes = pairs([0.9, 1.0], [1, 1])
    DrMas().credit(episodes)
    assert said(episodes, "solver") == pytest.approx([-0.7071, 0.7071], abs=1e-4)
    assert said(episodes, "verifier") == [0.0, 0.0]


def test_scaling_one_agents_rewards_moves_grpo_but_not_drmas():
    small = pairs([0.2, 0.4, 0.9], [0.1, 0.7, 0.3])
    large = pairs([2.0, 4.0, 9.0], [0.1, 0.7, 0.3])
    DrMas().credit(small)
    DrMas().credit(large)
    assert said(large, "solver") == pytest.approx(said(small, "solver"), abs=1e-4)
    assert said(large, "verifier") == said(small, "verifier")
    Grpo().credit(small)
    Grpo().credit(large)
    assert abs(said(large, "verifier")[0] - said(small, "verifier")[0]) > 0.1


def test_drmas_second_moments_are_one_for_each_agent_and_grpos_are_not():
    """ALGORITHMS: rewards N(.2, .1) and N(.9, .3): pooled .768 and 1.232, agent-wise 1 and 1."""
    draw = np.random.default_rng(0)
    number = 4_000
    solver, verifier = draw.normal(0.2, 0.1, number), draw.normal(0.9, 0.3, number)
    episodes = pairs(solver.tolist(), verifier.tolist())
    Grpo().credit(episodes)
    pooled = [np.mean(np.square(said(episodes, a))) for a in ("solver", "verifier")]
    DrMas().credit(episodes)
    alone = [np.mean(np.square(said(episodes, a))) for a in ("solver", "verifier")]
    assert pooled == pytest.approx([0.7681, 1.2319], abs=0.04)
    assert alone == pytest.approx([1.0, 1.0], abs=1e-3)


@pytest.mark.parametrize("algorithm", [Grpo(), DrMas(), Grpo(count="turn")])
@pytest.mark.parametrize("value", [0.9, 0.99, 1.0, 0.0, 1e9 + 0.1])
@pytest.mark.parametrize("size", [1, 2, 5, 8])
def test_constant_rewards_give_zero_advantage(algorithm, value, size):
    """Contract 6, on equality: never NaN, never the raw reward."""
    episodes = singles([value] * size)
    algorithm.credit(episodes)
    assert all(a == 0.0 for a in said(episodes, "solver"))
    assert not any(np.signbit(t.advantages).any() for e in episodes for t in e.turns)


def test_equal_scores_have_exactly_their_own_mean():
    """In float64 three times 0.1, added and divided by 3, is not 0.1."""
    assert np.mean([0.1] * 3) != 0.1
    assert all(exact_mean([x] * n) == x for x in (0.1, 0.7, -1e9 - 0.1) for n in range(1, 50))
    assert exact_mean([0.0, 1.0, 0.5]) == 0.5


def test_a_team_reward_counts_once_per_episode_however_many_agents_and_turns_carry_it():
    """Rule 11: entries of one episode with the same owner are one sample."""
    winner = [turn("solver", episode="0"), turn("verifier", episode="0", path=(1,))]
    loser = [
        turn(name, episode="1", path=(k,)) for k, name in enumerate(["solver"] * 3 + ["verifier"])
    ]
    episodes = [episode(0, winner, {"team": 1}), episode(1, loser, {"team": 0})]
    Grpo().credit(episodes)
    assert said(episodes, "solver") == pytest.approx([0.707106] + [-0.707106] * 3, abs=1.5e-6)
    assert said(episodes, "verifier") == pytest.approx([0.707106, -0.707106], abs=1.5e-6)
    Grpo(count="turn").credit(episodes)  # samples 1, 1, 0, 0, 0, 0: mean 1/3, spread .516398
    assert said(episodes, "verifier") == pytest.approx([1.290992, -0.645496], abs=2.5e-6)


def test_an_agent_with_a_reward_of_its_own_is_a_sample_beside_the_team():
    """Rule 11: owners. R = 1 + .5 and 1 of the first episode, 0 and -1 of the second."""
    episodes = [
        episode(i, [turn("a", episode=f"{i}"), turn("b", episode=f"{i}", path=(1,))], rewards)
        for i, rewards in enumerate([{"a": 0.5, "team": 1}, {"b": -1, "team": 0}])
    ]
    Grpo().credit(episodes)
    spread = np.std([1.5, 1, 0, -1], ddof=1)
    expected = [(x - 0.375) / (spread + 1e-6) for x in (1.5, 0.0, 1.0, -1.0)]
    found = said(episodes, "a") + said(episodes, "b")
    assert found == pytest.approx(expected, abs=1e-6)


def test_in_a_pooled_team_an_own_reward_is_compared_with_the_agents_other_turns_only():
    """Rule 12: A = norm(R) + r - mean of r; a pooled form gave the verifiers -+.7071."""
    episodes = [
        episode(i, [turn("s", episode=f"{i}"), turn("v", episode=f"{i}", path=(1,))], {"team": r})
        for i, r in enumerate([1, 1, 0, 0])
    ]
    episodes[0].turns[0].rewards = {"invalid": -0.1}
    Grpo().credit(episodes)
    norms = [0.866024, 0.866024, -0.866024, -0.866024]
    extra = [-0.075, 0.025, 0.025, 0.025]
    expected = [a + b for a, b in zip(norms, extra, strict=True)]
    assert said(episodes, "s") == pytest.approx(expected, abs=1.5e-6)
    assert said(episodes, "v") == pytest.approx(norms, abs=1.5e-6)


def test_in_a_team_of_one_trainable_agent_statistics_run_over_whole_scores():
    """Rule 12: scores 1 - .1 and 0, however a frozen teammate was rewarded."""
    episodes = pairs([1, 0], [5, 9])
    for e in episodes:
        e.turns[1].trained = False
    episodes[0].turns[0].rewards = {"invalid": -0.1}
    Grpo().credit(episodes)
    assert said(episodes, "solver") == pytest.approx([0.707106, -0.707106], abs=1.5e-6)


@pytest.mark.parametrize(
    ("team", "expected"),
    [
        (["solver"], [1.3175, 0.1464, -0.4392, -1.0247]),
        (["solver", "verifier"], [0.9285, 0.4285, -0.5535, -0.8035]),
    ],
)
def test_the_team_decides_the_formula_and_not_who_spoke_in_the_step(team, expected):
    """Outcomes 1, 1, 0, 0 and own rewards 0, -.5, .25, 0; another task is there or not."""
    for others in ([], pairs([5.0, 9.0], [7.0, 1.0])):
        episodes = singles([1, 1, 0, 0], task="z")
        for e, own in zip(episodes, [0.0, -0.5, 0.25, 0.0], strict=True):
            e.turns[0].rewards = {"own": own}
        rule = Grpo()
        rule.join_team(team)
        rule.credit([*episodes, *others])
        assert said(episodes, "solver") == pytest.approx(expected, abs=1e-4)


def test_compare_takes_any_baseline_any_count_and_any_own_reward():
    """Against the other episodes, every turn a sample, own reward 10 for the second turn."""
    episodes = [
        episode(i, [turn(episode=f"{i}"), turn(episode=f"{i}", path=(1,))], {"team": r})
        for i, r in enumerate([3, 1, 2])
    ]
    for e in episodes:
        e.turns[1].index = 1
    both = [(e, t) for e in episodes for t in e.turns]
    compare(
        both, mean="agent", std="none", count="turn", baseline=leave_one_out_mean, several=True,
        own=lambda e, t: 10.0 * t.index,
    )  # fmt: skip
    expected = [3 - 6.5, 13 - 6.5, 1 - 7.5, 11 - 7.5, 2 - 7.0, 12 - 7.0]
    assert [float(t.advantages[0]) for _, t in both] == expected
    compare(
        both, mean="task", std="task", count="episode_agent", several=False,
        own=lambda e, t: t.index,
    )  # fmt: skip
    # samples 3.5, 1.5, 2.5: mean 2.5, spread 1
    expected = [0.5, 1.5, -1.5, -0.5, -0.5, 0.5]
    assert [float(t.advantages[0]) for _, t in both] == pytest.approx(expected, abs=2e-6)


def test_scores_count_within_a_limit():
    both = [(e, t) for e in singles([3, 1, -9]) for t in e.turns]
    compare(
        both, mean="task", std="none", count="turn", several=False, limit=2.0,
        own=lambda e, t: 0.0,
    )  # fmt: skip
    assert [float(t.advantages[0]) for _, t in both] == pytest.approx([5 / 3, 2 / 3, -7 / 3])


def test_a_copied_episode_changes_no_advantage():
    """Rule 7."""
    for algorithm in (Grpo(), DrMas()):
        plain, copied = singles([1, 0, 0]), singles([1, 0, 0])
        algorithm.credit(plain)
        algorithm.credit([*copied, copied[0]])
        assert said(copied, "solver") == said(plain, "solver")


@pytest.mark.parametrize("algorithm", [Grpo(), DrMas()])
def test_groups_never_mix_prompts(algorithm):
    """Contract 6: another task's rewards change nothing."""
    alone = singles([1, 0, 0], task="x")
    beside = singles([1, 0, 0], task="x")
    others = singles([5, 9, 7], task="y")
    algorithm.credit(alone)
    algorithm.credit([*others[:2], *beside, others[2]])
    assert said(beside, "solver") == said(alone, "solver")


def test_a_penalty_on_the_solver_leaves_the_verifiers_advantages_bit_equal():
    def episodes(penalty: float):
        made = []
        for i, reward in enumerate([1, 1, 0]):
            solver = turn("solver", episode=f"{i}")
            if i == 0 and penalty:
                solver.rewards = {"invalid": -penalty}
            verifier = turn("verifier", episode=f"{i}", path=(1,))
            made.append(episode(i, [solver, verifier], {"team": reward}))
        return made

    for algorithm in (Grpo(), DrMas()):
        free, fined = episodes(0.0), episodes(0.1)
        algorithm.credit(free)
        algorithm.credit(fined)
        assert said(fined, "verifier") == said(free, "verifier")
        assert said(fined, "solver")[0] < said(free, "solver")[0]


@pytest.mark.parametrize("algorithm", [Grpo(), DrMas(), DrMas(count="episode_agent")])
def test_credit_is_pure_repeatable_and_blind_to_order(algorithm):
    episodes = [
        episode(
            i,
            [
                turn("solver", episode=f"{i}"),
                turn("verifier", episode=f"{i}", path=(1,), rewards={"invalid": -0.1 * (i % 2)}),
                turn("solver", episode=f"{i}", path=(2,)),
            ],
            {"team": i % 3},
        )
        for i in range(6)
    ]
    algorithm.credit(episodes)
    first = {t.id: t.advantages.copy() for e in episodes for t in e.turns}
    algorithm.credit(episodes)
    shuffled = copy.deepcopy(episodes)
    random.Random(1).shuffle(shuffled)
    for e in shuffled:
        e.turns.reverse()
    algorithm.credit(shuffled)
    for e in (*episodes, *shuffled):
        for t in e.turns:
            assert t.advantages == pytest.approx(first[t.id], abs=1e-12)


@pytest.mark.parametrize("algorithm", [Grpo(), DrMas()])
def test_a_constant_added_to_all_scores_changes_nothing(algorithm):
    plain, moved = singles([0.1, 0.5, 0.9]), singles([3.1, 3.5, 3.9])
    algorithm.credit(plain)
    algorithm.credit(moved)
    assert said(moved, "solver") == pytest.approx(said(plain, "solver"), abs=1e-6)


def test_turns_of_frozen_agents_and_masked_turns_enter_no_statistic():
    episodes = pairs([1.0, 0.0], [0.3, 0.8])
    for e in episodes:
        e.turns[1].trained = False
    Grpo().credit(episodes)
    assert said(list(episodes), "solver") == pytest.approx([0.7071, -0.7071], abs=1e-4)
    assert all(e.turns[1].advantages is None for e in episodes)
    cut = singles([1, 0, 0.5])
    cut[2].turns[0].finish = "length"
    Grpo(mask_truncated=True).credit(cut)
    assert said(cut, "solver") == pytest.approx([0.7071, -0.7071, 0.0], abs=1e-4)


@pytest.mark.parametrize("score", [float("nan"), float("inf")])
def test_a_score_that_is_not_finite_names_episode_and_agent(score):
    episodes = singles([1.0, score])
    with pytest.raises(ValueError, match="solver in x:1"):
        DrMas().credit(episodes)


def test_an_agent_that_spoke_once_in_the_group_gets_zero():
    episodes = singles([1, 0])
    episodes[0].turns.append(turn("verifier", episode="x0", path=(1,)))
    DrMas().credit(episodes)
    assert said(episodes, "verifier") == [0.0]
    assert said(episodes, "solver") == pytest.approx([0.7071, -0.7071], abs=1e-4)
