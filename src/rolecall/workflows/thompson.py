"""Estimates what a choice earns, and draws from that estimate: Thompson sampling."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random
from typing import Literal, Protocol

Kind = Literal["gaussian", "beta"]


class Posterior(Protocol):
    """Estimates the mean score of a choice from the scores that it has had."""

    def observe(self, score: float) -> None:
        """Learn from a score."""
        ...

    def draw(self, random: Random) -> float:
        """Return a mean that the scores so far allow, as often as they make it probable."""
        ...


@dataclass(slots=True)
class Gaussian:
    """Scores with a normal distribution whose mean and variance are not known.

    The prior is normal-inverse-chi-squared (Murphy, Probabilistic Machine Learning: Advanced
    Topics, 3.4.3). The numbers of AB-MCTS-A are the defaults.
    """

    mean: float = 0.0
    observations: float = 1.0  # kappa, what the prior weighs for the mean
    degrees: float = 1.0  # nu, what it weighs for the variance
    variance: float = 0.1  # tau squared

    def observe(self, score: float) -> None:
        """Scores 1 and 0 give mean 1/3, kappa 3, nu 3 and tau squared .255556.

        kappa' = kappa + 1; mean' = (kappa mean + x) / kappa'; nu' = nu + 1;
        nu' tau'^2 = nu tau^2 + kappa (x - mean)^2 / kappa'.
        """
        before, gain = self.observations, score - self.mean
        self.observations += 1
        self.mean += gain / self.observations
        spread = self.degrees * self.variance + before * gain * gain / self.observations
        self.degrees += 1
        self.variance = spread / self.degrees

    def draw(self, random: Random) -> float:
        """Draw a variance, nu tau^2 / chi^2(nu), and a mean, N(mean, variance / kappa)."""
        chi_squared = random.gammavariate(self.degrees / 2, 2.0)
        variance = self.degrees * self.variance / max(chi_squared, 1e-300)
        return random.gauss(self.mean, math.sqrt(variance / self.observations))


@dataclass(slots=True)
class Beta:
    """Scores from 0 to 1, each that share of a success; by default Jeffreys' prior."""

    successes: float = 0.5
    failures: float = 0.5

    def observe(self, score: float) -> None:
        """Scores 1 and .25 give Beta(1.75, 1.25). Raises ValueError for one outside of 0 to 1."""
        if not 0 <= score <= 1:
            raise ValueError(
                f"workflow.posterior: beta needs scores from 0 to 1, and an answer scored {score}; "
                "use gaussian"
            )
        self.successes += score
        self.failures += 1 - score

    def draw(self, random: Random) -> float:
        return random.betavariate(self.successes, self.failures)


KINDS: dict[Kind, type[Gaussian] | type[Beta]] = {"gaussian": Gaussian, "beta": Beta}


def choose(posteriors: list[Posterior], random: Random) -> int:
    """Return the number of the choice whose draw is highest; a single one needs no draw."""
    if len(posteriors) == 1:
        return 0
    draws = [posterior.draw(random) for posterior in posteriors]
    return draws.index(max(draws))
