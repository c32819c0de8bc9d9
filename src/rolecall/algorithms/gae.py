"""Rewards and values along one chain in, generalised advantages out (1506.02438)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Doubles = NDArray[np.float64]


def advantages(
    rewards: ArrayLike, values: ArrayLike, *, discounts: ArrayLike, lam: float
) -> Doubles:
    """A_l = delta_l + g_l lam A_{l+1}, delta_l = r_l + g_l V_{l+1} - V_l; after the end V is 0.

    rewards, values and discounts (from an element to the next) are [L]. Rewards [0, 0, 1], values
    [.5, .6, .2], discounts 1, lam .95 -> [.442, .36, .8].
    """
    r, v, g = (np.asarray(array, dtype=np.float64) for array in (rewards, values, discounts))
    found = np.zeros(len(r))
    following = value_after = 0.0
    for place in range(len(r) - 1, -1, -1):
        delta = r[place] + g[place] * value_after - v[place]
        following = found[place] = delta + g[place] * lam * following
        value_after = v[place]
    return found
