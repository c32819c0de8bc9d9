"""The clipped objective, its normalisers and its other terms, by known answers and on a softmax."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from rolecall.algorithms.corrections import correct
from rolecall.algorithms.counterfactual import Counterfactual
from rolecall.algorithms.dpo import Dpo
from rolecall.algorithms.drmas import DrMas
from rolecall.algorithms.grpo import Grpo
from rolecall.algorithms.losses import kl_estimate, value_loss
from rolecall.algorithms.policy_loss import ClippedLoss
from rolecall.algorithms.ppo import Ppo
from rolecall.algorithms.rloo import Rloo
from rolecall.core.interfaces.algorithm import Outputs
from rolecall.core.types import Batch
from rolecall.learners.packing import join
from tests.algorithms.small import Unigram, floats
from tests.toy import turn

D = [0.1, -1.5, 0.8, -10.0, 0.3]  # of ALGORITHMS, rule 24
EXP_D = [1.1052, 0.2231, 2.2255, 4.5e-5, 1.3499]


def flat(*turns) -> Batch:
    return join([[one] for one in turns])


def as_sampled(batch: Batch) -> Outputs:
    return Outputs(torch.from_numpy(batch.old_logprobs.copy()))


def moved(d, *, advantage: float = 1.0, episode: str = "e0"):
    """A turn whose learner differed from the sampler by `d` when its update began."""
    one = turn(tokens=[7] * len(d), advantage=advantage, episode=episode)
    one.training.prox_logprobs = one.logprobs + floats(d)
    return one


def at_prox(batch: Batch) -> Outputs:
    return Outputs(torch.from_numpy(batch.prox_logprobs.copy()))


def mean(loss) -> float:
    return loss.total.item() / loss.count


# --- the ratio and its clips ---


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [(1.3, 1.0, 1.28), (0.7, -1.0, -0.8), (1.3, -1.0, -1.3), (0.7, 1.0, 0.7)],
)
def test_clip_known_answers(ratio, advantage, expected):
    """Rule 18."""
    objective, clipped = ClippedLoss(clip_low=0.2, clip_high=0.28).objective(
        torch.tensor([math.log(ratio)]),
        torch.zeros(1),
        torch.tensor([advantage]),
        flat(turn(tokens=[7])),
    )
    assert objective.item() == pytest.approx(expected, rel=1e-5)
    assert clipped.item() == (expected != ratio * advantage)


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected"),
    [(5.0, -1.0, -3.0), (2.0, -1.0, -2.0), (5.0, -2.0, -6.0), (5.0, 1.0, 1.28), (0.1, -1.0, -0.8)],
)
def test_dual_clip_bounds_what_a_negative_advantage_costs(ratio, advantage, expected):
    one = turn(tokens=[7], advantage=advantage)
    one.training.prox_logprobs = one.logprobs
    batch = flat(one)
    outputs = Outputs(torch.from_numpy(batch.old_logprobs + np.float32(math.log(ratio))))
    algorithm = DrMas(clip_high=0.28, dual_clip=3.0, epochs=2)
    assert mean(algorithm.loss(batch, outputs)) == pytest.approx(-expected, rel=1e-5)


def test_a_ratio_beyond_all_bounds_stays_finite():
    far = turn(tokens=[7, 7], advantage=-1.0)
    far.training.prox_logprobs = floats([-1e4, -1.0])
    batch = flat(far)
    logprobs = torch.tensor([0.0, 0.0, -1.0, -1e4], requires_grad=True)
    loss = DrMas(correction="none").loss(batch, Outputs(logprobs))
    loss.total.backward()
    assert loss.total.item() == pytest.approx(math.exp(20) + 0.8, rel=1e-5)
    assert torch.isfinite(logprobs.grad).all()


def test_the_ratio_is_taken_to_the_sampler_where_that_is_the_anchor():
    batch = flat(turn(tokens=[7, 7], advantage=1.0))
    current = torch.from_numpy(batch.old_logprobs + np.float32(math.log(1.5)))
    free = DrMas().loss(batch, Outputs(current))
    tied = DrMas(anchor="sampler").loss(batch, Outputs(current))
    assert free.total.item() == pytest.approx(-3.0)  # ratio 1 to itself, weight 1.5 (rule 24)
    assert tied.total.item() == pytest.approx(-2.4, rel=1e-5)  # clipped at 1.2, no weight
    assert (free.sums["clip_share"], tied.sums["clip_share"]) == (0.0, 2.0)


def test_the_ratio_is_taken_to_the_start_of_the_update_where_there_are_several_steps():
    one = turn(tokens=[7], advantage=1.0)
    one.training.prox_logprobs = one.logprobs + np.float32(math.log(1.5))
    batch = flat(one)
    current = torch.from_numpy(one.training.prox_logprobs + np.float32(math.log(1.1))).repeat(3) * (
        torch.from_numpy(batch.mask)
    )
    loss = DrMas(epochs=2).loss(batch, Outputs(current))
    assert loss.total.item() == pytest.approx(-1.1 * 1.5, rel=1e-5)


# --- what a sum over ids is divided by ---


@pytest.mark.parametrize(
    ("agg", "turn_length", "expected"),
    [("token", None, 0.5), ("turn_mean", None, 0.0), ("turn_sum", 10, 0.2)],
)
def test_aggregation_known_answers(agg, turn_length, expected):
    """Rule 15: turns of 2 and 6 ids, advantages +1 and -1, ratio 1."""
    batch = flat(
        turn(tokens=[7] * 2, advantage=1.0), turn(tokens=[7] * 6, advantage=-1.0, episode="e1")
    )
    options = {} if turn_length is None else {"turn_length": turn_length}
    loss = DrMas(agg=agg, **options).loss(batch, as_sampled(batch))
    assert mean(loss) == pytest.approx(expected, abs=1e-6)


def test_micro_batch_sums_make_a_mean_not_a_mean_of_means():
    """Rule 16: token losses [4] and [0, 0, 0] in two micro-batches are 4 / 4, not (4 + 0) / 2."""
    first = flat(turn(tokens=[7], advantage=-4.0))
    second = flat(turn(tokens=[7, 7, 7], advantage=0.0))
    losses = [DrMas().loss(batch, as_sampled(batch)) for batch in (first, second)]
    assert sum(x.total.item() for x in losses) / sum(x.count for x in losses) == 1.0


def test_every_aggregation_is_a_sum_over_ids_with_known_weights():
    """Rule 15: `turn_mean` is the per-token weight N / (S * T_t)."""
    lengths, draw = [1, 3, 4], np.random.default_rng(0)
    turns = [turn(tokens=[7] * size, episode=f"e{size}") for size in lengths]
    for one in turns:
        one.advantages = floats(draw.normal(size=len(one.tokens)))
    batch, losses = flat(*turns), [-one.advantages.astype(float) for one in turns]
    expected = {
        "token": sum(x.sum() for x in losses) / 8,
        "turn_mean": sum(x.sum() / size for x, size in zip(losses, lengths, strict=True)) / 3,
        "turn_sum": sum(x.sum() for x in losses) / (3 * 5),
    }
    for agg, value in expected.items():
        options = {"turn_length": 5} if agg == "turn_sum" else {}
        loss = DrMas(agg=agg, **options).loss(batch, as_sampled(batch))
        assert mean(loss) == pytest.approx(value, rel=1e-5)


# --- KL to the reference ---


@pytest.mark.parametrize(("form", "expected"), [("k1", 0.2), ("k2", 0.02), ("k3", 0.018731)])
def test_kl_known_answers(form, expected):
    """Rule 19: d = ref - lp = -0.2."""
    found = kl_estimate(torch.tensor([-0.8]), torch.tensor([-1.0]), form=form)
    assert found.item() == pytest.approx(expected, abs=5e-7)
    one = turn(tokens=[7, 7], advantage=0.0)
    one.training.ref_logprobs = floats([-1.2, -1.2])
    batch = flat(one)
    loss = DrMas(kl=0.5, kl_form=form).loss(batch, as_sampled(batch))
    assert mean(loss) == pytest.approx(0.5 * expected, rel=1e-4)


def on_policy(reference):
    """Turns that sample 0, 0, 1, 2 from a policy of probabilities 1/2, 1/4, 1/4: exactly so."""
    made = []
    for number, token in enumerate([0, 0, 1, 2]):
        one = turn(tokens=[token], prompt=[8], episode=f"e{number}", advantage=0.0)
        one.logprobs = floats([math.log([0.5, 0.25, 0.25][token])])
        one.training.ref_logprobs = floats([math.log(reference[token])])
        made.append(one)
    return made


def test_on_policy_only_k2_as_a_loss_has_the_gradient_of_the_kl():
    """Rule 19, on a softmax; k3 has the gradient of KL(reference || policy) instead."""
    reference = [0.2, 0.3, 0.5]
    ref = torch.tensor(reference)
    policy = Unigram([math.log(0.5), math.log(0.25), math.log(0.25)])
    p = policy.logits.softmax(0)
    reverse = torch.autograd.grad((p * (p / ref).log()).sum(), policy.logits)[0]
    p = policy.logits.softmax(0)
    forward = torch.autograd.grad((ref * (ref / p).log()).sum(), policy.logits)[0]
    batch = flat(*on_policy(reference))
    found = {
        form: policy.gradient([batch], DrMas(kl=1.0, kl_form=form)) for form in ("k1", "k2", "k3")
    }
    assert torch.allclose(found["k2"], reverse, atol=1e-6)
    assert found["k1"].abs().max() < 1e-6
    assert torch.allclose(found["k3"], forward, atol=1e-6)
    assert (found["k3"] - reverse).abs().max() > 0.01


def test_the_kl_as_a_reward_is_no_loss():
    turns = on_policy([0.2, 0.3, 0.5])
    policy = Unigram([math.log(0.5), math.log(0.25), math.log(0.25)])
    assert not policy.gradient([flat(*turns)], DrMas(kl=1.0, kl_in="reward")).any()
    assert DrMas(kl=1.0, kl_in="reward").kl_rewards(turns[0]) == pytest.approx(
        -(math.log(0.5) - math.log(0.2)), rel=1e-5
    )


# --- weights, entropy, values ---


def test_weight_multiplies_the_policy_term_only():
    """Rule 20: neither KL nor entropy nor value terms, nor N."""
    terms = []
    for weight in (1.0, 0.5):
        one = turn(tokens=[7, 7], advantage=1.0)
        one.weight, one.training.ref_logprobs = weight, floats([-1.2, -1.2])
        one.training.values, one.returns = floats([0.5, 0.5]), floats([0.9, 0.9])
        batch = flat(one)
        outputs = as_sampled(batch)
        outputs.entropies = outputs.values = torch.from_numpy(batch.mask)
        loss = Ppo(kl=0.1, entropy=0.01).loss(batch, outputs)
        terms.append({**loss.sums, "count": loss.count, "total": loss.total.item()})
    whole, half = terms
    assert (whole["policy_loss"], half["policy_loss"]) == (-2.0, -1.0)
    for name in ("kl_loss", "entropy_loss", "value_loss", "count"):
        assert half[name] == whole[name] != 0.0
    assert whole["kl_loss"] == pytest.approx(2 * 0.1 * 0.018731, rel=1e-4)
    assert whole["entropy_loss"] == pytest.approx(2 * -0.01)
    assert whole["value_loss"] == pytest.approx(2 * 0.1 * 0.02, rel=1e-5)
    parts = ("policy_loss", "kl_loss", "entropy_loss", "value_loss")
    assert whole["total"] == pytest.approx(sum(whole[name] for name in parts), rel=1e-6)


def test_the_entropy_bonus_descends_towards_the_uniform_policy():
    policy = Unigram([2.0, 0.0, -1.0])
    p = policy.logits.softmax(0)
    expected = torch.autograd.grad(0.3 * (p * p.log()).sum(), policy.logits)[0]
    batch = flat(*on_policy([0.2, 0.3, 0.5]))
    assert torch.allclose(policy.gradient([batch], DrMas(entropy=0.3)), expected, atol=1e-6)
    for _ in range(200):
        policy.descend([batch], DrMas(entropy=0.3), lr=5.0)
    assert policy.probability(0) == pytest.approx(1 / 3, abs=1e-3)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(1.0, 0.02), (0.6, 0.045), (0.0, 0.405), (0.5, 0.08)],
)
def test_value_loss_known_answers(value, expected):
    """v_old .5, return .9, clip .2: the larger of free and bounded squares, halved."""
    args = [torch.tensor([x]) for x in (value, 0.5, 0.9)]
    assert value_loss(*args, clip=0.2).item() == pytest.approx(expected, rel=1e-5)


def test_value_loss_is_clipped_around_the_old_value_and_not_around_itself():
    """Pitfall: a clip of v - v is 0, and the gradient never stops."""
    value = torch.tensor([0.75], requires_grad=True)
    value_loss(value, torch.tensor([0.5]), torch.tensor([0.6]), clip=0.2).sum().backward()
    assert value.grad.item() == pytest.approx(0.15, rel=1e-5)
    value = torch.tensor([0.75], requires_grad=True)
    value_loss(value, torch.tensor([0.5]), torch.tensor([0.9]), clip=0.2).sum().backward()
    assert value.grad.item() == 0.0


# --- sampler against learner ---


@pytest.mark.parametrize(
    ("kind", "weights", "kept"),
    [
        ("token_tis", [*EXP_D[:2], 2.0, *EXP_D[3:]], [1, 1, 1, 1, 1]),
        ("token_mis", EXP_D, [1, 0, 0, 0, 1]),
        ("sequence_tis", [3.3633e-5] * 5, [1, 1, 1, 1, 1]),
        ("sequence_mis", [3.3633e-5] * 5, [0, 0, 0, 0, 0]),
        ("geometric_tis", [0.127454] * 5, [1, 1, 1, 1, 1]),
        ("geometric_mis", [1.0] * 5, [0, 0, 0, 0, 0]),
        ("none", [1.0] * 5, [1, 1, 1, 1, 1]),
    ],
)
def test_correction_known_answers(kind, weights, kept):
    """Rule 24: the numbers of d, and N = what is kept."""
    batch = flat(moved(D))
    d = torch.from_numpy(batch.prox_logprobs - batch.old_logprobs)
    weight, inside = correct(d, batch, kind=kind)
    sampled = batch.mask > 0
    assert (inside * torch.from_numpy(batch.mask))[sampled].tolist() == kept
    assert weight[sampled].tolist() == pytest.approx(weights, rel=2e-4, abs=5e-7)
    loss = DrMas(correction=kind, epochs=2).loss(batch, at_prox(batch))
    assert loss.count == sum(kept)
    expected = -sum(w * k for w, k in zip(weights, kept, strict=True))
    assert loss.total.item() == pytest.approx(expected, rel=2e-4, abs=1e-8)


@pytest.mark.parametrize(
    ("kind", "options", "weights", "kept"),
    [
        ("token_tis", {"high": 1.2}, [1.1052, 0.2231, 1.2, 4.5e-5, 1.2], [1] * 5),
        ("token_mis", {"low": 0.2, "high": 1.2}, EXP_D, [1, 1, 0, 0, 0]),
        ("geometric_mis", {"low": 0.1}, [1.0] * 5, [1] * 5),
        ("token_tis", {"veto": 1e-4}, [*EXP_D[:2], 2.0, *EXP_D[3:]], [0] * 5),
        ("token_tis", {"veto": 4e-5}, [*EXP_D[:2], 2.0, *EXP_D[3:]], [1] * 5),
    ],
)
def test_bounds_and_veto_of_a_correction(kind, options, weights, kept):
    """The token of ratio 4.5e-5 rejects its whole turn where the veto is above it."""
    batch = flat(moved(D))
    d = torch.from_numpy(batch.prox_logprobs - batch.old_logprobs)
    weight, inside = correct(d, batch, kind=kind, **options)
    sampled = batch.mask > 0
    assert inside[sampled].tolist() == kept
    assert weight[sampled].tolist() == pytest.approx(weights, rel=2e-4, abs=5e-7)
    keys = {f"correction_{name}": value for name, value in options.items()}
    loss = DrMas(correction=kind, epochs=2, **keys).loss(batch, at_prox(batch))
    assert loss.count == sum(kept)
    assert ("rejected" in loss.sums) == (kind.endswith("mis") or "veto" in options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"correction_low": 0.4}, "correction_low has no effect with correction 'token_tis'"),
        ({"correction": "none", "correction_high": 3}, "has no effect without a correction"),
        ({"anchor": "sampler", "correction_veto": 1e-4}, "has no effect without a correction"),
    ],
)
def test_bounds_without_an_effect_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        DrMas(**options)


def test_the_geometric_mean_of_the_known_example_is_what_is_tested():
    """exp(mean d) = .127454: below .5, and inside where the fourth id is .8 instead of -10; where
    exp(sum d) is 4.5 the sequence is outside and its mean inside.
    """
    assert math.exp(sum(D) / 5) == pytest.approx(0.127454, abs=5e-7)
    batch = flat(moved([0.1, -1.5, 0.8, 0.8, 0.3]))  # mean .1
    loss = DrMas(correction="geometric_mis", epochs=2).loss(batch, at_prox(batch))
    assert (loss.count, loss.total.item()) == (5.0, pytest.approx(-5.0))
    batch = flat(moved([0.3] * 5))
    for kind, count in (("geometric_mis", 5.0), ("sequence_mis", 0.0)):
        loss = DrMas(correction=kind, epochs=2).loss(batch, at_prox(batch))
        assert loss.count == count
    batch = flat(moved([0.1, 0.1, -0.05]))
    loss = DrMas(correction="sequence_mis", epochs=2).loss(batch, at_prox(batch))
    assert (loss.count, loss.total.item()) == (3.0, pytest.approx(-3 * 1.161834, rel=1e-5))


def test_token_truncation_is_the_default_with_the_learner_as_anchor():
    batch = flat(moved(D))
    default = DrMas(epochs=2).loss(batch, at_prox(batch))
    named = DrMas(epochs=2, correction="token_tis").loss(batch, at_prox(batch))
    assert default.total.item() == named.total.item()


def test_one_step_a_batch_corrects_with_the_log_probs_of_the_same_forward():
    """Rule 23: prox is then the detached lp, the ratio 1, and only the weight is left."""
    one = turn(tokens=[7] * 5, advantage=1.0)
    batch = flat(one)
    assert batch.prox_logprobs is None
    logprobs = torch.zeros(7)
    logprobs[2:] = torch.from_numpy(one.logprobs + floats(D))
    logprobs.requires_grad_()
    loss = DrMas().loss(batch, Outputs(logprobs))
    loss.total.backward()
    expected = [*EXP_D[:2], 2.0, *EXP_D[3:]]
    assert logprobs.grad[2:].tolist() == pytest.approx([-w for w in expected], rel=2e-4, abs=5e-7)


@pytest.mark.parametrize(
    ("agg", "expected"),
    [
        ("token", -(1.10517 + 1.34986 - 0.5) / 3),
        ("turn_mean", -((1.10517 + 1.34986) / 2 - 0.5) / 2),
    ],
)
def test_rejected_ids_leave_loss_and_normaliser(agg, expected):
    """Pitfall: with weight 0 but still in N they would shrink the gradient. Three turns: one
    keeps two ids of five, one keeps one of one (exp d = .5), one keeps none.
    """
    half = math.log(0.5) + 1e-6
    turns = [
        moved(D),
        moved([half], advantage=-1.0, episode="e1"),
        moved([math.log(2.0) + 1e-4, math.log(0.5) - 1e-4], episode="e2"),
    ]
    batch = flat(*turns)
    loss = DrMas(agg=agg, correction="token_mis", epochs=2).loss(batch, at_prox(batch))
    assert loss.count == {"token": 3.0, "turn_mean": 2.0}[agg]
    assert mean(loss) == pytest.approx(expected, rel=1e-4)
    assert loss.sums["rejected"] == 5.0


@pytest.mark.parametrize("kind", ["token_mis", "geometric_mis", "sequence_mis"])
def test_rejected_ids_have_no_gradient_of_any_term(kind):
    gone, stays = moved([5.0, 5.0]), moved([0.1, 0.1], episode="e1")
    for one in (gone, stays):
        one.training.ref_logprobs = floats([-1.5, -1.5])
    batch = flat(gone, stays)
    logprobs = torch.from_numpy(batch.prox_logprobs.copy()).requires_grad_()
    outputs = Outputs(logprobs, entropies=logprobs * 2)
    loss = DrMas(correction=kind, kl=0.1, entropy=0.1, epochs=2).loss(batch, outputs)
    loss.total.backward()
    touched = {turn_id: logprobs.grad[batch.turn == i] for i, turn_id in enumerate(batch.turn_ids)}
    assert not touched[gone.id].any()
    assert touched[stays.id][2:].all()
    assert loss.count == 2.0


@pytest.mark.parametrize("kind", ["token_tis", "sequence_tis", "token_mis", "geometric_mis"])
def test_log_ratios_are_clamped(kind):
    """Rule 24: what is absurdly far away is truncated or rejected, and never infinite."""
    batch = flat(moved([1e4, -1e4]), moved([500.0, 500.0], episode="e1"))
    loss = DrMas(correction=kind, epochs=2).loss(batch, at_prox(batch))
    assert math.isfinite(loss.total.item())
    assert loss.count == {"tis": 4.0, "mis": {"geometric_mis": 2.0}.get(kind, 0.0)}[kind[-3:]]


def test_with_the_sampler_as_anchor_a_correction_only_masks():
    """Rule 23: the ratio to the sampler is the weight already."""
    batch = flat(moved(D))
    same_as_sampler = Outputs(torch.from_numpy(batch.old_logprobs.copy()))
    loss = DrMas(anchor="sampler", correction="token_mis").loss(batch, same_as_sampler)
    assert (loss.count, loss.total.item()) == (2.0, -2.0)


# --- options without effect are errors ---


@pytest.mark.parametrize("correction", ["token_tis", "sequence_tis"])
def test_a_truncated_weight_with_the_sampler_as_anchor_is_an_error(correction):
    with pytest.raises(ValueError, match="count the ratio twice"):
        DrMas(anchor="sampler", correction=correction)


@pytest.mark.parametrize(
    ("kind", "options", "named"),
    [
        (DrMas, {"turn_length": 10}, "turn_length"),
        (Rloo, {"agg": "token", "turn_length": 3}, "turn_length"),
        (Grpo, {"kl_form": "k1"}, "kl_form"),
        (Grpo, {"kl": 0.1, "kl_in": "reward", "kl_form": "k1"}, "kl_form"),
        (Grpo, {"kl_in": "reward"}, "kl_in"),
        (Dpo, {"clip_low": 0.1}, "clip_low"),
        (Dpo, {"kl": 0.1}, "kl"),
        (Dpo, {"agg": "token"}, "agg"),
        (Counterfactual, {"text": "nothing"}, "text"),
    ],
)
def test_an_option_without_effect_is_an_error(kind, options, named):
    with pytest.raises(ValidationError, match=rf"{named}\b.* has no effect"):
        kind(**options)


@pytest.mark.parametrize(
    "options", [{"clip_low": 1.0}, {"clip_high": -0.1}, {"dual_clip": 1.0}, {"kl": -1.0}, {"x": 1}]
)
def test_values_out_of_range_and_unknown_names_are_errors(options):
    with pytest.raises(ValidationError):
        Grpo(**options)
