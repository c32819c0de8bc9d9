"""A2C, MAPoRL, CORY and MARFT: known answers, ragged episodes beside oracles, and losses."""

from __future__ import annotations

import itertools
import math
from functools import partial

import numpy as np
import pytest
import torch

from rolecall.algorithms.a2c import A2c
from rolecall.algorithms.cory import Cory
from rolecall.algorithms.kl_controller import make_kl_controller
from rolecall.algorithms.maporl import Maporl
from rolecall.algorithms.marft import Marft
from rolecall.algorithms.marft_token import MarftToken
from rolecall.algorithms.ppo import Ppo
from rolecall.core import gae
from rolecall.core.interfaces.algorithm import Outputs
from rolecall.learners.packing import join, pack
from tests.algorithms.small import Unigram, annotated, floats, one_batch, team_step
from tests.algorithms.test_rules import random_turns
from tests.toy import episode, turn

LOGITS = [0.5, -0.3, 0.1, 0.9, 0.0, 0.2, 0, 0, 0]


def all_of(e, name: str = "advantages") -> list[float]:
    return [float(x) for t in e.turns for x in getattr(t, name)]


# --- A2C ---


def test_a2c_is_the_return_less_the_value_and_its_gradient_is_not_clipped():
    one = turn(tokens=[7, 7])
    two = turn(tokens=[7], path=(2,))
    one.training.values, two.training.values = floats([0.5, 0.6]), floats([0.2])
    e = episode(0, [one, two], {"team": 1.0})
    A2c().credit([e])
    assert all_of(e) == pytest.approx([0.5, 0.4, 0.8])
    assert all_of(e, "returns") == [1.0, 1.0, 1.0]


def test_a2c_has_the_gradient_of_a_log_p_and_an_unclipped_value_loss():
    """The value has moved by 2 since, which PPO would cut to its clip."""
    turns = random_turns(5)
    for one in turns:
        one.training.prox_logprobs, one.weight, one.training.values = (
            None,
            1.0,
            one.training.values - 2.0,
        )
    policy = Unigram(LOGITS)
    found = policy.gradient(pack(turns, budget=40), A2c(correction="none"))
    logprobs, number = policy.logits.log_softmax(0), sum(len(t.tokens) for t in turns)
    total = torch.tensor(0.0)
    for one in turns:
        mine = logprobs[torch.from_numpy(one.tokens).long()]
        total = total - (mine * torch.from_numpy(one.advantages)).sum() / number
        value = (policy.logits[0] - torch.from_numpy(one.returns)) ** 2
        total = total + 0.25 * value.sum() / number
    expected = torch.autograd.grad(total, policy.logits)[0]
    assert torch.allclose(found, expected, atol=1e-6)
    ppo = policy.gradient(pack(turns, budget=40), Ppo(correction="none", value_coef=0.5))
    assert not torch.allclose(ppo, expected, atol=1e-3)


def test_a2c_in_a_second_epoch_weighs_by_the_ratio_without_a_clip():
    made = turn(tokens=[7])
    made.logprobs = made.training.prox_logprobs = floats([-1.0])
    made.advantages, made.returns, made.training.values = (
        floats([2.0]),
        floats([0.0]),
        floats([0.0]),
    )
    logprobs = torch.tensor([0.0, 0.0, -1.0 + math.log(3.0)], requires_grad=True)
    loss = A2c(epochs=2).loss(one_batch([made], A2c()), Outputs(logprobs, values=torch.zeros(3)))
    loss.total.backward()
    assert float(logprobs.grad[2]) == pytest.approx(-6.0, rel=1e-5), "3 times 2"


# --- MAPoRL ---


def debate(scores: list[list[float | None]], *, values: float = 0.0, number: int = 0, outcome=0.0):
    """By round and agent; None: it did not answer."""
    turns = []
    for k, row in enumerate(scores):
        for agent, score in zip("abc", row, strict=False):
            if score is not None:
                one = turn(agent, episode=f"{number}", path=(k, ord(agent)), rewards={"own": score})
                one.index = sum(t.agent == agent for t in turns)
                one.training.values = floats([values] * 2)
                one.training.ref_logprobs = one.logprobs
                turns.append(one)
    return episode(number, turns, {"team": outcome})


def returns_by_turn(e, **options) -> dict[tuple[int, str], float]:
    Maporl(whiten=False, lam=1.0, **options).credit([e])
    return {(t.index, t.agent): float(t.returns[-1]) for t in e.turns}


def test_maporl_known_answers():
    found = returns_by_turn(debate([[0.5, 0.1], [1.0, 0.0]]))
    assert found[0, "a"] == pytest.approx(0.5)
    assert found[0, "b"] == pytest.approx(0.192308, abs=1e-6)
    assert found[1, "a"] == 1.0
    found = returns_by_turn(debate([[0.5, 0.1], [1.0, 0.0], [1.0, 1.0]]))
    assert found[0, "a"] == pytest.approx(0.532374, abs=1e-6)


def test_maporl_a_round_that_was_not_played_is_in_no_mean():
    """b falls silent after the first round: the mean of the second is a's alone."""
    found = returns_by_turn(debate([[0.5, 0.1], [1.0, None]]))
    assert found[0, "b"] == pytest.approx((0.1 + 0.3 * 1.0) / 1.3)
    assert returns_by_turn(debate([[0.5, -1.0]]))[0, "b"] == -1.0, "a reward of -1 is no sentinel"


@pytest.mark.parametrize("kind", ["tools", "asked again"])
def test_maporl_counts_answers_and_not_tool_calls_or_repeated_asks_as_rounds(kind):
    """Two agents, one round: a is wrong, b is right after a turn that was no answer yet."""
    a, call, answer = turn("a", path=(0, 0)), turn("b", path=(1, 0)), turn("b", path=(1, 2))
    answer.index, answer.rewards = 1, {"own": 1.0}
    if kind == "tools":
        call.tools.calls, answer.parents = [{"name": "calculator"}], (call.id,)
    else:
        call.valid, call.rewards = False, {"invalid": -0.1}
    for one in (a, call, answer):
        one.training.values, one.training.ref_logprobs = floats([0.0, 0.0]), one.logprobs
    found = returns_by_turn(episode(0, [a, call, answer], {}), a0=1.0, a1=1.0, a2=1.0, a3=1.0)
    assert found[0, "a"] == 0.0
    assert found[1, "b"] == 1.0
    assert found[0, "b"] == pytest.approx(1.0 + call.score), "its tokens led to the answer"


def test_maporl_pays_the_outcome_with_the_last_answer():
    found = returns_by_turn(debate([[0.0, 0.0], [0.0, 0.0]], outcome=1.0))
    assert found[1, "a"] == found[1, "b"] == 1.0
    assert found[0, "a"] == pytest.approx(0.3 / 1.3)


def test_maporl_looks_no_further_than_the_turn():
    """GAE inside one turn: the values of the next one are in no advantage."""
    plain, later = debate([[0.5], [1.0]], values=0.25), debate([[0.5], [1.0]], values=0.25)
    later.turns[1].training.values = floats([9.0, 9.0])
    for e in (plain, later):
        Maporl(whiten=False, lam=0.95).credit([e])
    expected = gae.advantages([0, 0.8 / 1.3], [0.25, 0.25], discounts=[1.0, 1.0], lam=0.95)
    assert plain.turns[0].advantages == pytest.approx(expected, abs=1e-6)
    assert later.turns[0].advantages.tolist() == plain.turns[0].advantages.tolist()


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([[1, 1, 1], [0, 1, 1]], "-a1"),  # right to wrong, though the others were right
        ([[1, 0, 0], [0, 0, 0]], "-a0"),  # right to wrong, as the others were
        ([[0, 0, 0], [1, 0, 0]], "+a1"),  # wrong to right, though the others were wrong
        ([[0, 1, 1], [1, 1, 1]], "+a0"),
        ([[1, 1, 1], [1, 1, 1]], ""),
    ],
)
def test_maporl_pays_a_revision_by_what_the_others_had_said(scores, expected):
    options = {"a0": 0.125, "a1": 0.25}
    plain, paid = returns_by_turn(debate(scores)), returns_by_turn(debate(scores), **options)
    gain = {
        "": 0.0,
        **{f"{s}{n}": v * w for n, v in options.items() for s, w in (("+", 1), ("-", -1))},
    }
    assert paid[1, "a"] - plain[1, "a"] == pytest.approx(gain[expected])
    assert paid[0, "a"] == plain[0, "a"], "nothing came before it"


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        ([[1, 0, 0], [1, 1, 1]], 0.25),  # a right answer corrected its peers: +a3
        ([[0, 1, 1], [0, 0, 0]], -0.25),  # a wrong one misled them: -a3
        ([[0, 0, 0], [0, 1, 1]], 0.125),  # they got better in spite of it: +a2
        ([[1, 1, 1], [1, 0, 0]], -0.125),  # and worse: -a2
        ([[1, 0, 0], [1, 0, 0]], 0.0),
    ],
)
def test_maporl_pays_influence_with_the_sign_of_what_it_did(scores, expected):
    """Pitfall: correcting a peer was paid -a3 and misleading one +a3."""
    options = {"a2": 0.125, "a3": 0.25}
    plain, paid = returns_by_turn(debate(scores)), returns_by_turn(debate(scores), **options)
    assert paid[0, "a"] - plain[0, "a"] == pytest.approx(expected)
    assert paid[1, "a"] == plain[1, "a"], "nobody answered after it"


# --- CORY ---


def test_cory_takes_the_kl_of_each_token_and_pays_the_sum_with_the_last():
    """Both turns were paid .3 + .9 by the workflow."""
    turns = [turn(a, episode="0", path=(k,), policy=a) for k, a in enumerate(("one", "two"))]
    for one in turns:
        one.rewards = {"pair": 1.2}
        one.logprobs, one.training.ref_logprobs = floats([-1.0, -1.0]), floats([-1.5, -0.75])
        one.training.values = floats([0.0, 0.0])
    e = episode(0, turns, {})
    Cory(whiten=False, lam=1.0).credit([e])
    # KL rewards -.4 * .5 and -.4 * -.25
    assert all_of(e) == pytest.approx([1.2 - 0.2 + 0.1, 1.2 + 0.1] * 2)


def far_from_reference(kl: float, number: int, policy: str = "p"):
    made = []
    for i in range(number):
        one = annotated(turn(episode=f"{i}", policy=policy), seed=i)
        one.logprobs = floats([-1.0, -1.0])
        one.training.ref_logprobs = floats([-1.0 - kl / 2] * 2)
        made.append(episode(i, [one], {"team": float(i % 2)}))
    return made


@pytest.mark.parametrize("kind", [Cory, partial(Ppo, kl=0.4, kl_in="reward", kl_target=6.0)])
def test_the_coefficient_of_the_kl_follows_its_target_and_stays_with_its_policy(kind):
    """KL 9 and target 6 would be half too much: a step changes it by a fifth at most."""
    rule = kind()
    controller = make_kl_controller(rule)
    episodes = far_from_reference(9.0, 100, "a") + far_from_reference(6.3, 50, "b")
    rule.credit(episodes)
    controller.observe(episodes)
    assert controller.metrics() == pytest.approx({"kl/a": 9.0, "kl/b": 6.3}, rel=1e-5)
    controller.move()
    coefficients = controller.state_dict()["kl"]
    assert coefficients == pytest.approx(
        {"a": 0.4 * 1.002, "b": 0.4 * (1 + 0.05 * 0.005)}, rel=1e-6
    )
    again = kind()
    resumed = make_kl_controller(again)
    resumed.load_state_dict(controller.state_dict())
    for one, mover in ((rule, controller), (again, resumed)):
        more = far_from_reference(9.0, 10, "a")
        one.credit(more)
        mover.observe(more)
        mover.move()
    assert resumed.state_dict() == controller.state_dict()
    one = far_from_reference(9.0, 1, "a")[0].turns[0]
    assert again.kl_rewards(one) == pytest.approx([-4.5 * resumed.state_dict()["kl"]["a"]] * 2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kl": 0.1, "kl_target": 6.0}, "kl_target has no effect unless the KL is part of the rew"),
        ({"kl": 0.1, "kl_in": "reward", "horizon": 10}, "horizon has no effect without kl_target"),
    ],
)
def test_a_target_without_an_effect_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Ppo(**options)
    assert make_kl_controller(Ppo(kl=0.1)) is None


def test_cory_leaves_out_a_batch_whose_ratio_is_hopeless():
    made = annotated(turn(tokens=[7, 8]), seed=0)
    made.training.prox_logprobs, made.advantages, made.returns = (
        floats([-5, -5]),
        floats([1, 1]),
        floats([0, 0]),
    )
    batch = one_batch([made], Cory())
    for logprob, moves in ((-4.9, True), (-2.0, False)):
        logprobs = torch.tensor([0.0, 0.0, logprob, logprob], requires_grad=True)
        Cory().loss(batch, Outputs(logprobs, values=torch.zeros(4))).total.backward()
        assert bool(logprobs.grad.abs().sum() > 0) == moves


# --- MARFT ---


def in_turn(values, scores, *, parallel: bool = False):
    turns = []
    for k, (value, score) in enumerate(zip(values, scores, strict=True)):
        one = turn("ab"[k % 2], episode="0", path=(k // 2, k % 2), rewards={"r": score})
        one.index, one.training.values = k // 2, floats([value] * 2)
        if not parallel and turns:
            one.parents = (turns[-1].id,)
        turns.append(one)
    return episode(0, turns, {})


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize(
    ("gamma", "lam", "expected"),
    [(0.99, 0.95, [0.41526, 0.341584, 0.5801, 0.2]), (1.0, 1.0, [0.5, 0.4, 0.6, 0.2])],
)
def test_marft_chains_the_turns_of_all_agents(gamma, lam, expected, parallel):
    """Two steps of two agents; also of agents that speak at once, which share no value here."""
    e = in_turn([0.5, 0.6, 0.4, 0.8], [0, 0, 0, 1], parallel=parallel)
    Marft(gamma=gamma, lam=lam, whiten=False).credit([e])
    assert [float(t.advantages[0]) for t in e.turns] == pytest.approx(expected, abs=1e-6)


def test_marfts_advantages_telescope_to_what_was_earned_beyond_the_first_value():
    """The lemma: with lam = 0 and gamma = 1 they add up to G - V_1."""
    for e in team_step():
        for number, one in enumerate(e.turns):
            one.training.values = floats([0.1 * number + 0.2] * len(one.tokens))
        Marft(lam=0.0, whiten=False).credit([e])
        earned = e.rewards["team"] + sum(t.score for t in e.turns)
        assert sum(float(t.advantages[0]) for t in e.turns) == pytest.approx(earned - 0.2, abs=1e-6)


@pytest.mark.parametrize("ratio", ["none", "token", "word"])
def test_marfts_loss_is_that_of_whole_utterances(ratio):
    """min(rho A, clip(rho) A) of each, a mean over turns, differentiated as it stands."""
    rule = Marft(ratio=ratio, clip_low=0.3, clip_high=0.3, correction="none")
    turns = random_turns(8)
    texts = ["", "so", "so be it", " so\n\nbe it  done ", "so be", "so be it now", "so-be", "it is"]
    num_words = [1, 1, 3, 4, 2, 4, 1, 2]
    for number, one in enumerate(turns):
        one.advantages = floats([(-1.0) ** number] * len(one.tokens))
        one.weight, one.text = 1.0, texts[number]
    policy = Unigram(LOGITS)
    batches = pack(turns, budget=40)
    found = policy.gradient(batches, rule)
    logprobs = policy.logits.log_softmax(0)
    total, clipped = torch.tensor(0.0), 0
    for one, words in zip(turns, num_words, strict=True):
        d = logprobs[torch.from_numpy(one.tokens).long()] - torch.from_numpy(
            one.training.prox_logprobs
        )
        rho = torch.exp(d.sum() / {"none": 1, "token": len(d), "word": words}[ratio])
        a = float(one.advantages[0])
        whole = torch.minimum(rho * a, rho.clamp(0.7, 1.3) * a)
        clipped += int(float(whole.detach()) != float((rho * a).detach()))
        total = total - whole / len(turns)
    assert torch.allclose(found, torch.autograd.grad(total, policy.logits)[0], atol=1e-6)
    value = sum(float(rule.loss(b, policy.forward(b)).total.detach()) for b in batches)
    assert value / len(turns) == pytest.approx(float(total.detach()), rel=1e-5)
    assert 0 < clipped < len(turns), "some are clipped, and some are not"


def test_marfts_ratio_by_words_of_three_ragged_utterances_of_two_agents():
    """Log-ratios that add up to .6 in two words, -.4 in one, .4 in four: exp of .3, -.4, .1."""
    turns = [
        turn("a", episode="0", tokens=[1, 2, 3]),
        turn("b", episode="0", tokens=[4], path=(1,)),
        turn("a", episode="1", tokens=[5, 6]),
    ]
    moved, advantages = ([0.1, 0.2, 0.3], [-0.4], [0.2, 0.2]), (1.0, 2.0, -1.0)
    for one, text, a in zip(turns, ("be it", "so", "so be it now"), advantages, strict=True):
        one.text, one.advantages = text, floats([a] * len(one.tokens))
    rule = Marft(ratio="word", clip_low=0.5, clip_high=0.5, correction="none")
    batch = join([[one] for one in turns])
    assert batch.words[batch.mask > 0].tolist() == [2, 2, 2, 1, 4, 4]
    logprobs = torch.zeros(len(batch.tokens))
    logprobs[torch.from_numpy(batch.mask > 0)] = torch.tensor([d for own in moved for d in own])
    logprobs.requires_grad_()
    anchor = torch.zeros(len(batch.tokens))
    found, clipped = rule.objective(logprobs, anchor, torch.from_numpy(batch.advantages), batch)
    found.sum().backward()
    rho = np.exp([0.3, -0.4, 0.1])
    assert found.sum().item() == pytest.approx(float(rho @ np.array(advantages)), abs=1e-6)
    each = logprobs.grad[torch.from_numpy(batch.mask > 0)]
    by_word = rho * advantages / [2, 1, 4]
    assert each.tolist() == pytest.approx(list(np.repeat(by_word, [3, 1, 2])), abs=1e-6)
    assert not clipped[torch.from_numpy(batch.mask > 0)].any()


def test_marft_token_chains_from_token_to_token_and_agent_to_agent():
    one, two = turn("a", episode="0", tokens=[7, 7]), turn("b", episode="0", tokens=[7], path=(1,))
    one.training.values, two.training.values = floats([0.5, 0.6]), floats([0.2])
    e = episode(0, [one, two], {"team": 1.0})
    MarftToken(whiten=False, lam=0.95).credit([e])
    assert all_of(e) == pytest.approx([0.442, 0.36, 0.8], abs=1e-6)
    apart = episode(0, [one, two], {"team": 1.0})
    Ppo(whiten=False, lam=0.95).credit([apart])
    assert all_of(apart) != pytest.approx([0.442, 0.36, 0.8], abs=1e-3), "a chain for each agent"


def test_marft_token_of_ragged_episodes_by_an_oracle():
    episodes = team_step()
    MarftToken(whiten=False, gamma=0.9, gamma_turn=0.8, lam=0.7).credit(episodes)
    for e in episodes:
        tokens = [(t, k) for t in e.turns for k in range(len(t.tokens))]
        rewards = [t.score if k == len(t.tokens) - 1 else 0.0 for t, k in tokens]
        rewards[-1] += e.rewards["team"]
        values = [float(t.training.values[k]) for t, k in tokens]
        for place, (t, k) in enumerate(tokens):
            total, weight = 0.0, 1.0
            for later in range(place, len(tokens)):
                owner, own = tokens[later]
                g = 0.8 if own == len(owner.tokens) - 1 else 0.9
                following = values[later + 1] if later + 1 < len(tokens) else 0.0
                total += weight * (rewards[later] + g * following - values[later])
                weight *= g * 0.7
            assert float(t.advantages[k]) == pytest.approx(total, abs=1e-6)


@pytest.mark.parametrize("kind", [Marft, MarftToken])
def test_round_robin_trains_one_agent_for_some_steps_and_goes_on_with_it(kind):
    rule = kind(round_robin=2)
    trained = []
    for step in range(1, 7):
        episodes = team_step()
        rule.credit(episodes)
        trained.append(
            sorted({t.agent for e in episodes for t in e.turns if t.advantages is not None})
        )
        rule.after_step(step)
        again = kind(round_robin=2)
        again.load_state_dict(rule.state_dict())
        rule = again
    assert list(itertools.chain(*trained)) == ["solver"] * 2 + ["verifier"] * 2 + ["solver"] * 2
    everybody = team_step()
    kind().credit(everybody)
    assert all(t.advantages is not None for e in everybody for t in e.turns)


@pytest.mark.parametrize("kind", [Marft, MarftToken])
def test_round_robin_gives_every_agent_of_the_team_its_steps_though_it_is_absent(kind):
    """Three agents; the verifier does not speak in the second step."""
    rule = kind(round_robin=1)
    rule.join_team(["solver", "verifier", "writer"])
    trained = []
    for step in range(1, 7):
        episodes = team_step()
        for number, t in enumerate(t for e in episodes for t in e.turns):
            t.agent = "writer" if number % 3 == 2 else t.agent
        if step == 2:
            for e in episodes:
                e.turns = [t for t in e.turns if t.agent != "verifier"]
        rule.credit(episodes)
        trained.append({t.agent for e in episodes for t in e.turns if t.advantages is not None})
        rule.after_step(step)
    others = [{"solver"}, {"verifier"}, {"writer"}]
    assert trained == [others[0], set(), others[2], *others]


def test_maporl_pays_who_debates_with_nobody_no_bonus():
    assert returns_by_turn(debate([[1.0], [0.0]]), a0=1.0, a1=1.0, a2=1.0, a3=1.0)[1, "a"] == 0.0
