"""What must hold for the credit and the loss of every built-in algorithm, by rule of ALGORITHMS."""

from __future__ import annotations

import copy
import dataclasses
import random
from itertools import product

import numpy as np
import pytest
import torch

from rolecall.algorithms.policy_loss import ClippedLoss
from rolecall.config.registry import BUILT_IN, resolve
from rolecall.core.types import Utility
from rolecall.learners.packing import pack
from tests.algorithms.small import (
    NAMES,
    Unigram,
    algorithm,
    annotated,
    floats,
    one_batch,
    said,
    team_step,
)
from tests.toy import episode, turn

# Their returns are a chain in the order of the episode, and a team's own rewards are summed.
CHAINS = [
    "ppo", "ppo_critic", "a2c", "maporl", "cory", "marft", "marft_token", "mappo", "happo", "vdn",
    "qmix",
]  # fmt: skip
TEAM_RETURN = ["mappo", "happo", "marft", "marft_token", "vdn", "qmix"]
RELATIVE = [
    "grpo", "drmas", "rloo", "dr_grpo", "gspo", "gigpo", "matpo", "agentrl", "dapo", "mgrpo",
    "reinforce_pp_baseline", "at_grpo", "leader_only", "ma_airl",
]  # fmt: skip
COMPARE_CANDIDATES = [name for name in NAMES if algorithm(name).compares_candidates]
OF_TURNS = [name for name in NAMES if not algorithm(name).keep_together]  # losses, not of pairs
OF_A_TASK = [n for n in NAMES if n not in CHAINS and not n.startswith("reinforce")]
# The averages of reinforce_baseline start at 0, as the values of a2c, which whitens nothing; sft
# compares with a threshold, not with attempts, and read with 0; the KL of cory is never off.
AT_ONCE = [n for n in NAMES if n not in ("reinforce_baseline", "sft", "a2c", "cory", "read")]
CLIPPED = [n for n in OF_TURNS if isinstance(algorithm(n), ClippedLoss)]
WRITES = ("advantages", "returns", "weight")  # beside `training.preference`


def credited(episodes):
    return {t.id: t.advantages for e in episodes for t in e.turns}


def one_score(value: float, *, attempts: int, own: bool, turns: int = 3):
    """Everybody earns `value` and every critic says the same; attempts have 1 to `turns` turns."""
    made = []
    for task in ("x", "y"):
        for i in range(attempts):
            name = f"{task}{i}"
            spoken = [turn(task=task, episode=name, path=(k,)) for k in range(1 + i % turns)]
            for number, one in enumerate(spoken):
                annotated(one, seed=number)
                one.training.values = floats([0.5, 0.5])
                one.training.utility = Utility(0.0, 0.0, gain=0.25, mixed_q=0.5, mixed_v=0.5)
                one.rewards = {"own": value} if own else {}
            made.append(episode(i, spoken, {} if own else {"team": value}, task=task))
    return made


@pytest.mark.parametrize("name", AT_ONCE)
def test_constant_rewards_give_zero_advantage(name):
    """Rule 6, on equality, however many turns an attempt has: never NaN, never the raw reward.

    In MAPoRL the outcome comes with the last answer, so returns are equal where there is one.
    """
    turns = 1 if name == "maporl" else 3
    for value, attempts in product((0.9, 0.99, 0.1, 0.0, 1e9 + 0.1), (1, 2, 5, 8)):
        episodes = one_score(value, attempts=attempts, own=False, turns=turns)
        algorithm(name, lam=1.0, kl=0.0).credit(episodes)
        found = credited(episodes).values()
        assert all((a == 0.0).all() and len(a) == 2 for a in found), (value, attempts)


@pytest.mark.parametrize(
    "name", [*(n for n in RELATIVE if n != "gigpo"), "counterfactual", "dpo"]
)  # gigpo adds up what an agent's turns earn, and attempts have 1 to 3
@pytest.mark.parametrize("value", [0.9, 0.1])
def test_constant_own_rewards_give_zero_advantage(name, value):
    episodes = one_score(value, attempts=5, own=True)
    algorithm(name, kl=0.0).credit(episodes)
    assert all((a == 0.0).all() for a in credited(episodes).values())


@pytest.mark.parametrize("name", NAMES)
def test_credit_writes_only_what_it_may_and_says_the_same_twice(name):
    """Rule 9."""
    episodes = team_step()

    def written():
        turns = [t for e in episodes for t in e.turns]
        notes = [(t.training.preference, t.training.credit) for t in turns]
        return [
            [*(getattr(t, w) for w in WRITES), *noted]
            for t, noted in zip(turns, notes, strict=True)
        ]

    def rest():
        turns = [dataclasses.asdict(t) for e in episodes for t in e.turns]
        for record in turns:
            del record["training"]["preference"], record["training"]["credit"]
            for name in WRITES:
                del record[name]
        return turns, copy.deepcopy([(e.rewards, e.scores, e.metrics) for e in episodes])

    rule = algorithm(name)
    before = rest()
    rule.credit(episodes)
    first = copy.deepcopy(written())
    rule.credit(episodes)
    np.testing.assert_equal(rest(), before)
    np.testing.assert_equal(written(), first)
    several = name.endswith("_value")  # of candidates, and here every call has one
    assert any(np.any(advantages) for advantages, *_ in first) != several


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(4))
def test_the_order_of_episodes_and_turns_changes_nothing(name, seed):
    """Rule 9; turns of a chain keep their order, because it is their order in time."""
    episodes, shuffled = team_step(), team_step()
    random.Random(seed).shuffle(shuffled)
    for e in shuffled:
        if name not in CHAINS:
            random.Random(seed).shuffle(e.turns)
        elif name == "ppo":
            e.turns.sort(key=lambda t: (t.agent == "solver", t.path))
    rule = algorithm(name)
    rule.credit(episodes)
    rule.credit(shuffled)
    there = credited(shuffled)
    for turn_id, advantages in credited(episodes).items():
        assert advantages == pytest.approx(there[turn_id], abs=1e-12)


@pytest.mark.parametrize("name", OF_A_TASK)
def test_another_tasks_rewards_change_nothing_where_groups_are_of_a_task(name):
    """Rule 5; the others declare that they mix tasks."""
    alone, beside = team_step(tasks=["x"]), team_step(tasks=["x"])
    others = team_step(tasks=["y"], scale=7.0)
    rule = algorithm(name, scale=False)
    rule.credit(alone)
    rule.credit([*others[:2], *beside, *others[2:]])
    np.testing.assert_equal(credited(beside), credited(alone))


@pytest.mark.parametrize("name", OF_A_TASK)
def test_a_group_that_is_carried_over_is_not_compared_with_a_new_one_of_its_task(name):
    """Small data sets sample a task again before its slow attempts have ended."""
    alone, carried = team_step(tasks=["x"]), team_step(tasks=["x"])
    new = team_step(tasks=["x"], scale=7.0)
    for e in new:
        e.id = f"new {e.id}"
        for t in e.turns:
            t.id, t.episode, t.group = f"new {t.id}", f"new {t.episode}", "2"
            t.parents = tuple(f"new {name}" for name in t.parents)
    for t in (t for e in (*alone, *carried) for t in e.turns):
        t.group = "1"
    rule = algorithm(name, scale=False)
    rule.credit(alone)
    rule.credit([*new[:2], *carried, *new[2:]])
    np.testing.assert_equal(credited(carried), credited(alone))


@pytest.mark.parametrize("name", OF_A_TASK)
@pytest.mark.parametrize("silent", ["solver", "verifier"])
def test_who_speaks_at_another_task_changes_nothing(name, silent):
    """One agent is silent at this task, and speaks at another one of the step."""

    def attempts():
        made = team_step(tasks=["x"])
        for e in made:
            e.turns = [t for t in e.turns if t.agent != silent]
        return made

    alone, beside = attempts(), attempts()
    rule = algorithm(name, scale=False)
    rule.join_team(["solver", "verifier"])
    rule.credit(alone)
    rule.credit([*beside, *team_step(tasks=["y"])])
    np.testing.assert_equal(credited(beside), credited(alone))


@pytest.mark.parametrize(
    "name", [*RELATIVE, "reinforce_pp", "reinforce_baseline", "ppo", "counterfactual", "dpo"]
)
def test_a_penalty_on_the_solver_leaves_the_verifiers_advantages_bit_equal(name):
    """Rule 12. MAPPO and its kin declare a return of the team: the sum of a stage's own rewards."""
    free, fined = team_step(), team_step()
    fined[0].turns[0].rewards["invalid"] = -0.1
    fined[5].turns[2].rewards["invalid"] = -0.1
    rule = algorithm(name, pair_up="all")
    rule.credit(free)
    rule.credit(fined)
    assert said_each(fined, "verifier") == said_each(free, "verifier")
    assert said_each(fined, "solver") != said_each(free, "solver") or name == "dpo"


def said_each(episodes, agent):
    return [t.advantages.tolist() for e in episodes for t in e.turns if t.agent == agent]


@pytest.mark.parametrize("name", [*RELATIVE, "reinforce_pp", "ppo"])
def test_a_constant_added_to_all_scores_changes_nothing(name):
    """Rule 10."""
    plain, moved = team_step(), team_step(shift=3.0)
    if name == "at_grpo":
        for e in moved:
            for t in e.turns:
                t.rewards["own"] += 3.0
    rule = algorithm(name, kl=0.0, lam=1.0)
    rule.credit(plain)
    rule.credit(moved)
    there = credited(moved)
    for turn_id, advantages in credited(plain).items():
        assert advantages == pytest.approx(there[turn_id], abs=1e-6)


@pytest.mark.parametrize(
    "name", ["drmas", "mgrpo", "at_grpo", "reinforce_pp", "reinforce_pp_baseline"]
)
def test_a_positive_factor_changes_nothing_where_a_spread_divides(name):
    """Rule 10: below 1e-4 where the spread is at least .1."""
    plain, scaled = team_step(scale=3.0), team_step(scale=30.0)
    rule = algorithm(name, kl=0.0, reward_clip=1e6)
    rule.credit(plain)
    rule.credit(scaled)
    there = credited(scaled)
    for turn_id, advantages in credited(plain).items():
        assert advantages == pytest.approx(there[turn_id], abs=1e-4)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("score", [float("nan"), float("inf"), float("-inf")])
def test_a_score_that_is_not_finite_names_episode_and_agent(name, score):
    """Rule 14."""
    outcome, own = team_step(), team_step()
    outcome[5].rewards["team"] = score
    own[2].turns[1].rewards["own"] = score
    if name != "ma_airl":  # reads no outcome
        with pytest.raises(ValueError, match="solver in y:1 is not finite"):
            algorithm(name).credit(outcome)
    with pytest.raises(ValueError, match="verifier in x:2 is not finite"):
        algorithm(name).credit(own)


@pytest.mark.parametrize("name", NAMES)
def test_an_agent_without_ids_speaks_and_is_not_trained(name):
    """Rules 7 and 27: an agent behind an API has neither ids nor log-probs nor values."""
    episodes = team_step()
    for e in episodes:
        check = e.turns[1]
        check.trained = False
        check.prompt = check.tokens = check.logprobs = check.training.ref_logprobs = None
        check.training.values = floats([0.4])
    algorithm(name).credit(episodes)
    for e in episodes:
        assert e.turns[1].advantages is None
        assert np.isfinite(e.turns[0].advantages).all()


@pytest.mark.parametrize("name", NAMES)
def test_candidates_that_were_not_played_are_trained_only_by_who_compares_them(name):
    """Rule 3: nor do they change what the played turns earn."""
    episodes, plain = team_step(), team_step()
    for number, e in enumerate(episodes):
        first = e.turns[0]
        other = turn("solver", task=first.task, episode=first.episode, path=(0, 1), policy="a")
        other.chosen, other.candidate, other.rewards = False, 1, {"own": 100.0 * (number % 2)}
        annotated(other, seed=number)
        e.turns.insert(1, other)
    rule = algorithm(name)
    rule.credit(episodes)
    rule.credit(plain)
    if rule.compares_candidates:
        assert all(e.turns[1].advantages is not None for e in episodes)
        return
    assert all(e.turns[1].advantages is None for e in episodes)
    there = credited(episodes)
    np.testing.assert_equal({i: there[i] for i in credited(plain)}, credited(plain))


@pytest.mark.parametrize("name", COMPARE_CANDIDATES)
def test_a_candidate_whose_world_raised_is_an_error_and_not_a_zero(name):
    """Rule 8 for candidates: it is compared with nobody and in no batch."""
    rule = algorithm(name)
    episodes, plain = team_step(), team_step()
    for e in episodes:
        first = e.turns[0]
        failed = turn("solver", task=first.task, episode=first.episode, path=(0, 1), policy="a")
        failed.chosen, failed.candidate = False, 1
        failed.candidate_error = "ConnectionError: the world went away"
        e.turns.insert(1, annotated(failed, seed=1))
    rule.credit(episodes)
    rule.credit(plain)
    assert all(e.turns[1].advantages is None for e in episodes)
    there = credited(episodes)
    np.testing.assert_equal({i: there[i] for i in credited(plain)}, credited(plain))
    if rule.keep_together:
        paired = rule.pairs([t for e in episodes for t in e.turns])
        assert not any(t.candidate_error for pair in paired for t in pair)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in TEAM_RETURN])
def test_truncated_turns_can_be_left_out_of_every_statistic(name):
    """Rule 4: what a masked turn earned moves nobody, and its own advantages are zero."""
    cut, wild = team_step(), team_step()
    for episodes, reward in ((cut, 0.0), (wild, 50.0)):
        for e in episodes[::3]:
            e.turns[1].finish, e.turns[1].rewards = "length", {"own": reward}
    rule = algorithm(name, mask_truncated=True)
    rule.credit(cut)
    rule.credit(wild)
    np.testing.assert_equal(credited(wild), credited(cut))
    assert all(not np.any(e.turns[1].advantages) for e in cut[::3])


# --- losses ---

CHANGES = [
    {},
    {"kl": 0.1},
    {"entropy": 0.05},
    {"correction": "token_mis"},
    {"correction": "geometric_mis"},
    {"agg": "token"},
    {"agg": "turn_mean"},
    {"agg": "turn_sum", "turn_length": 7},
]


CASES = [
    pytest.param(name, change, id=f"{name}-{'-'.join(map(str, change.values())) or 'default'}")
    for name in NAMES
    for change in CHANGES
    if set(change) <= type(algorithm(name)).model_fields.keys()
]


def random_turns(number: int, *, zeros: int = 0, seed: int = 0):
    draw = np.random.default_rng(seed)
    turns = []
    for i in range(number):
        tokens = draw.integers(0, 6, draw.integers(1, 6)).tolist()
        one = turn(episode=f"e{i}", prompt=[8, i % 3], tokens=tokens)
        annotated(one, seed=100 * seed + i)
        one.logprobs = floats(draw.uniform(-2.5, -0.5, len(tokens)))
        one.advantages = floats(draw.normal(size=len(tokens)) * (i >= zeros))
        one.returns = floats(draw.normal(size=len(tokens)))
        one.training.preference = float(draw.normal())
        one.weight = float(draw.uniform(0.5, 1.5))
        turns.append(one)
    return turns


@pytest.mark.parametrize(("name", "change"), CASES)
def test_micro_batches_equal_whole(name, change):
    """Rule 16, whatever is packed with what, and however it is cut."""
    rule, turns = algorithm(name, **change), random_turns(9)
    pairs = rule.pairs(turns) if rule.keep_together else None
    whole = Unigram([0.5, -0.3, 0.1, 0.9, 0.0, 0.2, 0, 0, 0]).gradient(
        [one_batch(turns, rule)], rule
    )
    for budget in (14, 30, 1000):
        batches = pack(turns, budget=budget, pairs=pairs)
        found = Unigram([0.5, -0.3, 0.1, 0.9, 0.0, 0.2, 0, 0, 0]).gradient(batches, rule)
        assert torch.allclose(found, whole, atol=1e-6)
    assert whole.abs().max() > 1e-3


@pytest.mark.parametrize(("name", "change"), [c for c in CASES if c.values[0] in OF_TURNS])
def test_skipping_turns_without_advantage_changes_no_gradient(name, change):
    """Rule 17."""
    rule, turns = algorithm(name, **change), random_turns(8, zeros=4)
    policy = Unigram([0.5, -0.3, 0.1, 0.9, 0.0, 0.2, 0, 0, 0])
    kept = policy.gradient(pack(turns, budget=20), rule)
    skipped = policy.gradient(pack(turns, budget=20, skip_zero=rule.skips_zero), rule)
    assert torch.allclose(kept, skipped, atol=1e-7)
    if rule.skips_zero:
        assert sum(len(b.turn_ids) for b in pack(turns, budget=20, skip_zero=True)) == 4


@pytest.mark.parametrize(("name", "change"), CASES)
def test_only_sampled_ids_carry_loss(name, change):
    """Rule 1: whatever stands where the mask is 0 is inert."""
    rule, turns = algorithm(name, **change), random_turns(6)
    policy = Unigram([0.5, -0.3, 0.1, 0.9, 0.0, 0.2, 0, 0, 0])
    batch = one_batch(turns, rule)
    before = policy.gradient([batch], rule)
    for column in ("old_logprobs", "prox_logprobs", "ref_logprobs", "advantages", "returns"):
        getattr(batch, column)[batch.mask == 0] = 3.0
    assert torch.equal(policy.gradient([batch], rule), before)


@pytest.mark.parametrize("name", CLIPPED)
def test_sums_of_metrics_carry_the_normaliser_of_the_loss(name):
    """Rule 20: shares are shares, however the loss is aggregated."""
    rule, turns = algorithm(name), random_turns(5)
    for one in turns:
        one.advantages = np.ones_like(one.advantages)
        one.training.prox_logprobs = np.full_like(
            one.training.prox_logprobs, -5.0
        )  # ratios far above any clip
    batch = one_batch(turns, rule)
    loss = rule.loss(batch, Unigram([0.0] * 9).forward(batch))
    expected = 0.0 if name in ("rloo", "remax") else 1.0  # whose one step has no ratio
    assert loss.sums["clip_share"] / loss.count == pytest.approx(expected)


def test_advantages_are_the_same_on_all_ids_of_group_algorithms():
    for name in RELATIVE:
        episodes = team_step()
        algorithm(name).credit(episodes)
        assert len(said(episodes, "solver")) == 16


def test_losses_without_a_ratio_need_no_log_probs_of_before_and_pairs_are_never_skipped():
    """What a loss does not read says so once, for all algorithms with a loss of another kind."""
    kinds = {name: resolve("algorithm", name, key="") for name in BUILT_IN["algorithm"]}
    without = {
        name: kind(epochs=3).skips_zero
        for name, kind in kinds.items()
        if not kind(epochs=3).needs_prox
    }
    imitate = dict.fromkeys(("sft", "read", "vdn_value", "qmix_value"), True)
    assert without == imitate | {"dpo": False, "spin": False}
