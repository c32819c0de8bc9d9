"""Ids are drawn from the distribution that is reported, by numba's loops and by PyTorch alike."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from rolecall.core.interfaces.engine import Sampling
from rolecall.engines.local import sampling
from tests.toy import alike

WAYS = [sampling._drawn, sampling._walked]


@pytest.mark.parametrize("size", [1, 2, 255, 256, 257, 5000])
def test_both_ways_draw_the_same_ids_with_the_log_probs_of_the_softmax(size):
    torch.manual_seed(size)
    logits, temperature = torch.randn(400, size) * 4, torch.rand(400) + 0.3
    uniform = torch.rand(400, dtype=torch.float64)
    exact = (logits.double() / temperature.double()[:, None]).log_softmax(-1)
    sums = exact.exp().cumsum(-1)
    for way in WAYS:
        ids, logprobs = way(logits, uniform, temperature)
        wanted = exact.gather(1, ids[:, None])[:, 0]
        assert alike(logprobs, wanted, rounding=1e-6)
        low = (
            sums.gather(1, ids[:, None])[:, 0] - wanted.exp(),
            sums.gather(1, ids[:, None])[:, 0],
        )
        assert (low[0] - 1e-6 <= uniform).all()
        assert (uniform <= low[1] + 1e-6).all()


@pytest.mark.parametrize("way", WAYS)
def test_an_id_that_has_no_weight_is_never_drawn(way):
    logits = torch.full((6, 600), float("-inf"))
    logits[:, [3, 300, 590]] = torch.tensor([0.0, 0.0, -150.0])
    edges = torch.tensor(
        [0.0, 0.25, 0.5, 0.75, np.nextafter(1.0, 0.0), 0.4999999], dtype=torch.float64
    )
    ids, logprobs = way(logits, edges, torch.ones(6))
    assert ids.tolist() == [3, 3, 300, 300, 300, 3]
    assert logprobs == pytest.approx(np.full(6, np.log(0.5)), abs=1e-6)


def test_greedy_and_filtered_rows_leave_their_neighbours_as_they_are():
    torch.manual_seed(0)
    logits, uniform = torch.randn(6, 50), torch.rand(6, dtype=torch.float64)
    plain_ids, plain = sampling.draw(logits, uniform, torch.ones(6), [])
    special = [(1, Sampling(temperature=0.0)), (4, Sampling(top_k=2))]
    temperature = torch.tensor([1.0, 0.0, 1.0, 1.0, 1.0, 1.0])
    ids, logprobs = sampling.draw(logits, uniform, temperature, special)
    others = [0, 2, 3, 5]
    assert torch.equal(ids[others], plain_ids[others])
    assert torch.equal(logprobs[others], plain[others])
    assert ids[1] == logits[1].argmax()
    assert logprobs[1] == pytest.approx(float(logits[1].log_softmax(-1).max()), abs=1e-6)
    best = logits[4].topk(2)
    assert ids[4] in best.indices
    assert (best.values.log_softmax(-1) - logprobs[4]).abs().min() < 1e-6


def kept(logits, one):
    """Log-probs [V] that are left of a row: by the definition, in float64."""
    order = logits.double().argsort(descending=True)
    mass = (logits.double() / (one.temperature or 1.0)).softmax(-1)[order]
    mass[one.top_k or len(mass) :] = 0.0
    mass[mass.cumsum(-1) - mass >= one.top_p * mass.sum()] = 0.0
    return torch.zeros_like(mass).scatter(0, order, mass / mass.sum()).log()


@pytest.mark.parametrize("temperature", [0.0, 0.6, 1.3])
@pytest.mark.parametrize(
    "filters", [{"top_k": 1}, {"top_k": 40}, {"top_p": 0.9}, {"top_p": 0.97, "top_k": 300}]
)
@pytest.mark.parametrize("size", [3, 256, 3000])
@pytest.mark.parametrize("spread", [0.01, 1.0, 8.0])
def test_a_filtered_row_is_drawn_from_what_is_kept(size, filters, temperature, spread):
    """Also where the mass is spread so evenly that most tokens are kept."""
    torch.manual_seed(size)
    one = Sampling(temperature=temperature, **filters)
    logits, uniform = spread * torch.randn(60, size), torch.rand(60, dtype=torch.float64)
    special = [(row, one) for row in range(60)]
    ids, logprobs = sampling.draw(logits, uniform, torch.full((60,), temperature), special)
    for row, (chosen, logprob) in enumerate(zip(ids.tolist(), logprobs.tolist(), strict=True)):
        wanted = kept(logits[row], one)
        assert logprob == pytest.approx(float(wanted[chosen]), abs=2e-5)
        end = float(wanted.exp()[: chosen + 1].sum())
        if temperature:
            assert end - float(wanted.exp()[chosen]) - 1e-5 <= uniform[row] <= end + 1e-5
        else:
            assert chosen == logits[row].argmax()


def test_a_filtered_row_of_a_broken_model_has_a_log_prob_that_is_no_number():
    logits = torch.full((1, 300), float("nan"))
    special = [(0, Sampling(top_p=0.9))]
    _, logprobs = sampling.draw(logits, torch.rand(1).double(), torch.ones(1), special)
    assert logprobs.isnan().all()
