"""Posteriors of scores: their numbers by hand, and what is drawn from them."""

from __future__ import annotations

from random import Random
from statistics import fmean, pvariance

import pytest

from rolecall.workflows.thompson import Beta, Gaussian, choose


def observed(posterior, *scores):
    for score in scores:
        posterior.observe(score)
    return posterior


def test_a_gaussian_learns_from_two_scores():
    """kappa 1 + 2, mean (0 + 1) / 3, nu 1 + 2, and (.1 + .5 + 2 * 1 * .5^2 / 3) / 3."""
    posterior = observed(Gaussian(), 1.0, 0.0)
    assert (posterior.observations, posterior.degrees) == (3, 3)
    assert posterior.mean == pytest.approx(1 / 3)
    assert posterior.variance == pytest.approx((0.1 + 0.5 + 0.5 / 3) / 3)


def test_score_by_score_is_the_same_as_all_at_once():
    scores = [0.2, 0.9, 0.4, 0.4, 1.0]
    posterior = observed(Gaussian(), *scores)
    n, mean = len(scores), fmean(scores)
    spread = 0.1 + n * pvariance(scores) + n * mean**2 / (1 + n)
    assert posterior.mean == pytest.approx(n * mean / (1 + n))
    assert posterior.variance == pytest.approx(spread / (1 + n))


def test_a_beta_counts_shares_of_successes():
    posterior = observed(Beta(), 1.0, 0.25)
    assert (posterior.successes, posterior.failures) == (1.75, 1.25)


def test_a_beta_refuses_a_score_outside_of_0_to_1():
    with pytest.raises(ValueError, match=r"workflow.posterior: beta needs .* scored 2.0"):
        Beta().observe(2.0)


@pytest.mark.parametrize(
    ("posterior", "mean", "variance"),
    [
        (Beta(3.0, 1.0), 0.75, 3 / 80),
        # A mean of kappa 4 and nu 10: Student's t, whose variance is nu / (nu - 2) tau^2 / kappa.
        (Gaussian(0.5, 4.0, 10.0, 0.2), 0.5, 10 / 8 * 0.2 / 4),
    ],
)
def test_draws_have_the_mean_and_the_variance_of_the_posterior(posterior, mean, variance):
    random = Random(0)
    draws = [posterior.draw(random) for _ in range(40_000)]
    assert fmean(draws) == pytest.approx(mean, abs=0.01)
    assert pvariance(draws) == pytest.approx(variance, rel=0.05)


def test_what_has_earned_more_is_chosen_more_often_and_not_always():
    good, bad = observed(Beta(), 1, 1, 1), observed(Beta(), 0, 1)
    chosen = [choose([good, bad], Random(number)) for number in range(300)]
    assert 0 < sum(chosen) < 75


def test_a_single_choice_takes_no_draw():
    random = Random(0)
    before = random.getstate()
    assert choose([Beta()], random) == 0
    assert random.getstate() == before
