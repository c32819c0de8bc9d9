"""DPO: pairs of answers to one prompt, and a loss of pairs."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from rolecall.algorithms.dpo import Dpo, ipo_loss, pair_loss
from rolecall.config.schema import Config
from rolecall.core.errors import ConfigError
from rolecall.core.interfaces.algorithm import Outputs
from rolecall.learners.packing import join, pack
from rolecall.setup.plan import validate
from tests.algorithms.small import Unigram, floats
from tests.toy import episode, solo_config, turn


def answers(scores, ref_logprobs=None):
    """One answer an episode, all to one prompt."""
    made = []
    for i, score in enumerate(scores):
        one = turn(episode=f"{i}", tokens=[i])
        one.training.ref_logprobs = one.logprobs if ref_logprobs is None else ref_logprobs
        made.append(episode(i, [one], {"team": score}))
    return made


def paired(episodes, **options):
    algorithm = Dpo(**options)
    algorithm.credit(episodes)
    turns = [t for e in episodes for t in e.turns]
    place = {t.id: i for i, t in enumerate(turns)}
    return [(place[a.id], place[b.id]) for a, b in algorithm.pairs(turns)]


def test_best_and_worst_or_every_two_with_different_scores():
    assert paired(answers([0.5, 1, 0])) == [(1, 2)]
    assert sorted(paired(answers([0.5, 1, 0]), pair_up="all")) == [(0, 2), (1, 0), (1, 2)]
    assert sorted(paired(answers([1, 0, 1]), pair_up="all")) == [(0, 1), (2, 1)]


def test_ties_make_no_pair():
    """Degenerate: no pair in a step is no update."""
    for options in ({}, {"pair_up": "all"}):
        assert paired(answers([1, 1, 1]), **options) == []
        assert paired(answers([1]), **options) == []


def test_which_of_two_equal_answers_is_paired_does_not_depend_on_their_order():
    """Rule 9."""

    def names(order):
        episodes = answers([1, 1, 0, 0])
        algorithm, shuffled = Dpo(), [episodes[i] for i in order]
        algorithm.credit(shuffled)
        [(a, b)] = algorithm.pairs([t for e in shuffled for t in e.turns])
        return a.id, b.id

    assert len({names(order) for order in ([0, 1, 2, 3], [3, 2, 1, 0], [2, 1, 3, 0])}) == 1


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("prompt", np.array([5, 7], dtype=np.int32)),
        ("prompt", np.array([5], dtype=np.int32)),
        ("state", "other"),
        ("index", 1),
        ("agent", "verifier"),
        ("task", "y"),
    ],
)
def test_answers_to_different_prompts_are_never_paired(key, value):
    """Pitfall: best and worst of different prompts."""
    episodes = answers([1, 0.5, 0])
    setattr(episodes[0].turns[0], key, value)
    assert paired(episodes) == paired(episodes, pair_up="all") == [(1, 2)]


def test_the_same_words_are_no_pair_whatever_each_was_worth():
    """The next best pair is taken; without one there is none."""
    episodes = answers([1, 0, 0.5])
    episodes[1].turns[0].tokens = episodes[0].turns[0].tokens.copy()
    assert paired(episodes) == [(0, 2)]
    assert sorted(paired(episodes, pair_up="all")) == [(0, 2), (2, 1)]
    assert paired(episodes[:2]) == paired(episodes[:2], pair_up="all") == []


def test_candidates_of_two_worlds_are_no_pair_though_their_prompts_are_equal():
    """One world pays everybody, the other one nobody: that says nothing of the words."""
    episodes = []
    for i in range(2):
        turns = [turn(episode=f"{i}", tokens=[2 * i + k], path=(0, k)) for k in range(2)]
        for k, one in enumerate(turns):
            one.candidate, one.chosen, one.rewards = k, k == 0, {"own": float(i)}
        episodes.append(episode(i, turns, {}))
    assert paired(episodes) == paired(episodes, pair_up="all") == []
    episodes[0].turns[1].rewards = {"own": -1.0}
    assert paired(episodes) == [(0, 1)]


def test_answers_of_several_attempts_are_paired_though_what_they_do_not_see_may_differ():
    """Right on average: the luck of a world is the same for the better and the worse words.

    Each of two answers is worth its own mean, 1 or 0, and luck of +-2 that nobody sees: over all
    four outcomes the better words are preferred as often as luck leaves it, and never less.
    """
    preferred = []
    for first, second in itertools.product((-2.0, 2.0), repeat=2):
        [(better, _)] = paired(answers([1.0 + first, 0.0 + second]))
        preferred.append(better)
    assert preferred.count(0) == 3


def test_own_rewards_decide_between_candidates_of_one_episode():
    turns = []
    for k, score in enumerate([0.2, 0.7, 0.4]):
        one = turn(episode="0", tokens=[k], path=(0, k), rewards={"own": score})
        one.candidate, one.chosen = k, k == 1
        turns.append(one)
    assert paired([episode(0, turns, {"team": 1.0})]) == [(1, 0)]


def test_credit_marks_both_sides_of_a_pair():
    episodes = answers([0.5, 1, 0])
    Dpo().credit(episodes)
    marks = [float(e.turns[0].advantages[0]) for e in episodes]
    assert marks == [0.0, 1.0, -1.0]


def batch_of(better, worse, *, lengths=(2, 3)):
    """A pair whose log-probs exceed the reference's by `better` and `worse` in all."""
    turns = [
        turn(tokens=[7] * size, episode=f"e{i}", advantage=1.0) for i, size in enumerate(lengths)
    ]
    for one in turns:
        one.training.ref_logprobs = floats([-2.0] * len(one.tokens))
    batch = join([[turns[0]], [turns[1]]], pairs=[(turns[0], turns[1])])
    logprobs = torch.zeros(len(batch.tokens))
    for number, (gain, size) in enumerate(zip((better, worse), lengths, strict=True)):
        places = torch.from_numpy((batch.turn == number) & (batch.mask > 0))
        logprobs[places] = -2.0 + gain / size
    return batch, logprobs.requires_grad_()


def test_at_the_reference_the_loss_is_ln_2():
    batch, logprobs = batch_of(0.0, 0.0)
    loss = Dpo().loss(batch, Outputs(logprobs))
    assert (loss.total.item(), loss.count) == (pytest.approx(0.693147, abs=5e-7), 1.0)


def test_known_answers():
    """lp_w - ref_w = 1, lp_l - ref_l = -.5: logit .15, loss .620957, gradient -.046257 an id."""
    batch, logprobs = batch_of(1.0, -0.5)
    loss = Dpo().loss(batch, Outputs(logprobs))
    loss.total.backward()
    assert loss.total.item() == pytest.approx(0.620957, abs=1e-6)
    assert loss.sums == {"pair_accuracy": 1.0, "margin": pytest.approx(0.15, abs=1e-6)}
    sampled = batch.mask > 0
    assert logprobs.grad[torch.from_numpy(sampled & (batch.turn == 0))].tolist() == pytest.approx(
        [-0.046257] * 2, abs=5e-7
    )
    assert logprobs.grad[torch.from_numpy(sampled & (batch.turn == 1))].tolist() == pytest.approx(
        [0.046257] * 3, abs=5e-7
    )
    assert not logprobs.grad[torch.from_numpy(~sampled)].any()


def test_smoothing_takes_a_share_of_the_labels_to_be_wrong():
    logits = torch.tensor([0.15])
    right, wrong = math.log(1 + math.exp(-0.15)), math.log(1 + math.exp(0.15))
    assert pair_loss(logits, smoothing=0.0).item() == pytest.approx(right, rel=1e-6)
    found = pair_loss(logits, smoothing=0.1).item()
    assert found == pytest.approx(0.9 * right + 0.1 * wrong, rel=1e-6)


def test_ipo_asks_for_a_margin_and_for_no_more():
    """Margins are of mean log-probs, here 1 / 2 tokens - (-.5 / 3 tokens)."""
    batch, logprobs = batch_of(1.0, -0.5)
    loss = Dpo(loss_type="ipo", beta=0.3).loss(batch, Outputs(logprobs))
    wanted = (1.0 / 2 + 0.5 / 3 - 1 / 0.6) ** 2
    assert (loss.total.item(), loss.count) == (pytest.approx(wanted, rel=1e-6), 1.0)
    assert loss.sums["margin"] == pytest.approx(0.3 * (1.0 / 2 + 0.5 / 3), rel=1e-6)
    assert ipo_loss(torch.tensor([5.0, 0.0, 10.0]), beta=0.1).tolist() == [0.0, 25.0, 25.0]


def test_hinge_counts_what_is_short_of_one_and_sppo_moves_each_side():
    """Logit .15 = .1 (1 + .5); SPPO asks for gains of 5 and -5."""
    batch, logprobs = batch_of(1.0, -0.5)
    hinge = Dpo(loss_type="hinge").loss(batch, Outputs(logprobs))
    assert hinge.total.item() == pytest.approx(0.85, rel=1e-6)
    sppo = Dpo(loss_type="sppo").loss(batch, Outputs(logprobs))
    assert sppo.total.item() == pytest.approx((1 - 5) ** 2 + (-0.5 + 5) ** 2, rel=1e-6)


def test_nll_adds_the_mean_likelihood_of_the_better_turn():
    """The better turn has 2 tokens of log-prob -1.5 each: -2 under the reference, gained 1."""
    batch, logprobs = batch_of(1.0, -0.5)
    plain = Dpo().loss(batch, Outputs(logprobs)).total.item()
    loss = Dpo(nll=0.5).loss(batch, Outputs(logprobs))
    assert loss.total.item() == pytest.approx(plain + 0.5 * 1.5, rel=1e-6)


def test_without_a_reference_log_probs_themselves_are_compared():
    batch, logprobs = batch_of(1.0, -0.5)
    batch.ref_logprobs = None
    loss = Dpo(reference_free=True).loss(batch, Outputs(logprobs))
    logit = 0.1 * ((-2.0 * 2 + 1.0) - (-2.0 * 3 - 0.5))
    assert loss.total.item() == pytest.approx(math.log(1 + math.exp(-logit)), rel=1e-6)
    assert not Dpo(reference_free=True).needs_reference


def test_smoothing_and_ipo_contradict():
    with pytest.raises(ValueError, match="smoothing has no effect with loss_type ipo"):
        Dpo(loss_type="ipo", smoothing=0.1)


def test_a_reference_that_nobody_reads_is_refused(model_folder):
    config = solo_config(model_folder, algorithm={"name": "dpo", "reference_free": True})
    validate(Config.model_validate(config))
    config["policies"]["a"]["reference"] = "initial"
    with pytest.raises(ConfigError, match=r"policies\.a\.reference has no effect"):
        validate(Config.model_validate(config))


def test_the_loss_is_a_mean_over_the_pairs_of_the_step_however_they_are_packed():
    """keep_together: global over micro-batches; a turn may be in several pairs."""
    draw = np.random.default_rng(0)
    episodes = answers([1, 0.5, 0, 0.2, 0.9])
    for e in episodes:
        e.turns[0].training.ref_logprobs = floats(draw.normal(size=1))
    algorithm, policy = Dpo(pair_up="all"), Unigram(draw.normal(size=5).tolist())
    algorithm.credit(episodes)
    turns = [t for e in episodes for t in e.turns]
    pairs = algorithm.pairs(turns)
    assert len(pairs) == 10
    lp, ref = policy.logits.log_softmax(0), [float(t.training.ref_logprobs[0]) for t in turns]
    losses = [
        -torch.nn.functional.logsigmoid(0.1 * ((lp[w] - ref[w]) - (lp[b] - ref[b])))
        for w, b in [(int(w.tokens[0]), int(b.tokens[0])) for w, b in pairs]
    ]
    expected = torch.autograd.grad(torch.stack(losses).mean(), policy.logits)[0]
    for budget in (4, 6, 9, 1000):
        batches = pack(turns, budget=budget, pairs=pairs)
        assert sum(len(batch.pairs) for batch in batches) == 10
        assert torch.allclose(policy.gradient(batches, algorithm), expected, atol=1e-6)


def test_three_symbol_softmax():
    """First gradient [.025, .025, -.05]; after 200 SGD steps at lr 5 P(best) is 1, loss .072."""
    policy, algorithm = Unigram([0.0, 0.0, 0.0]), Dpo(pair_up="all")
    episodes = answers([0, 0, 1], ref_logprobs=floats([math.log(1 / 3)]))
    algorithm.credit(episodes)
    turns = [t for e in episodes for t in e.turns]
    batches = pack(turns, budget=100, pairs=algorithm.pairs(turns))
    first = policy.gradient(batches, algorithm).tolist()
    assert first == pytest.approx([0.025, 0.025, -0.05], abs=1e-6)
    for _ in range(200):
        policy.descend(batches, algorithm, lr=5.0)
    assert policy.probability(2) == pytest.approx(1.0, abs=5e-4)
    losses = [algorithm.loss(batch, policy.forward(batch)) for batch in batches]
    mean = sum(x.total.item() for x in losses) / sum(x.count for x in losses)
    assert mean == pytest.approx(0.072, abs=5e-4)


def test_what_it_declares():
    algorithm = Dpo()
    assert algorithm.keep_together
    assert algorithm.compares_candidates
    assert algorithm.needs_reference
    assert not algorithm.needs_prox
    assert not algorithm.skips_zero
    assert (algorithm.beta, algorithm.smoothing, algorithm.pair_up) == (0.1, 0.0, "best_worst")
