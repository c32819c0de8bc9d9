"""Computes generalised advantages and TD(lambda) targets along one chain of values."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Doubles = NDArray[np.float64]


def advantages(
    rewards: ArrayLike,
    values: ArrayLike,
    *,
    discounts: ArrayLike,
    lam: float,
    next_value: float = 0.0,
    next_advantage: float = 0.0,
) -> Doubles:
    """Return A_l = delta_l + g_l lam A_{l+1} with delta_l = r_l + g_l V_{l+1} - V_l (GAE,
    1506.02438).

    rewards, values and discounts (from an element to the next) are [L]. `next_value` and
    `next_advantage` are of the element after the last one; after the end of an episode both are 0.
    Rewards [0, 0, 1], values [.5, .6, .2], discounts 1, lam .95 -> [.442, .36, .8].
    """
    r, v, g = (np.asarray(array, dtype=np.float64) for array in (rewards, values, discounts))
    result = np.zeros(len(r))
    following, value_after = next_advantage, next_value
    for index in range(len(r) - 1, -1, -1):
        delta = r[index] + g[index] * value_after - v[index]
        following = result[index] = delta + g[index] * lam * following
        value_after = v[index]
    return result


def lambda_targets(
    rewards: ArrayLike, next_values: ArrayLike, *, gamma: float, lam: float
) -> Doubles:
    """Return the TD(lambda) targets y_t = r_t + gamma ((1 - lam) V_{t+1} + lam y_{t+1}), the last y
    = r.

    rewards [T], next_values [T - 1] of elements 1 to T - 1 -> [T]. r (0, 1), V (.4), gamma .9,
    lam .8 -> (.9 (.2 * .4 + .8 * 1), 1) = (.792, 1).
    """
    targets = np.array(rewards, dtype=np.float64)
    values = np.asarray(next_values, dtype=np.float64)
    if len(values) != len(targets) - 1:
        raise ValueError(f"{len(targets)} rewards need one value less, not {len(values)}")
    for t in reversed(range(len(values))):
        targets[t] += gamma * ((1.0 - lam) * values[t] + lam * targets[t + 1])
    return targets
