"""Finds an equilibrium of a game for two by counterfactual regret minimisation (CFR+).

All deals are walked at once: how far a line of play is open to a seat does not depend on the cards.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]


@dataclass
class Spot:
    """What was done so far, in every deal; `rows` are the views of the seat to move."""

    seat: int | None
    payoffs: Doubles | None = None  # of the first seat, [deals]
    rows: NDArray[np.int64] | None = None  # [deals]
    views: list[str] = field(default_factory=list)  # by row
    actions: list[str] = field(default_factory=list)
    after: list[Spot] = field(default_factory=list)
    regrets: Doubles | None = None  # [views, actions]
    weights: Doubles | None = None


def make_spot(games: Sequence) -> Spot:
    """One spot and all that come after it."""
    seat = games[0].to_move
    if seat is None:
        return Spot(None, payoffs=np.array([game.payoffs()[0] for game in games]))
    views = [game.view(seat) for game in games]
    names = sorted({*views})
    spot = Spot(seat, rows=np.array([names.index(view) for view in views]), views=names)
    spot.actions = games[0].legal()
    for action in spot.actions:
        after = copy.deepcopy(games)
        for game in after:
            game.play(action)
        spot.after.append(make_spot(after))
    spot.regrets = np.zeros((len(names), len(spot.actions)))
    spot.weights = np.zeros_like(spot.regrets)
    return spot


def chances(table: Doubles) -> Doubles:
    """Rows in proportion to what is positive; equal parts where nothing is."""
    positive = np.maximum(table, 0.0)
    total = positive.sum(1, keepdims=True)
    return np.where(total > 0, positive / np.where(total > 0, total, 1), 1 / table.shape[1])


def walk(spot: Spot, seat: int, own: Doubles, other: Doubles, weight: float) -> Doubles:
    """The value for a seat in each deal, while its regrets are updated."""
    if spot.seat is None:
        return spot.payoffs if seat == 0 else -spot.payoffs
    played = chances(spot.regrets)[spot.rows]
    if spot.seat != seat:
        return sum(
            played[:, number] * walk(after, seat, own, other * played[:, number], weight)
            for number, after in enumerate(spot.after)
        )
    values = np.stack(
        [
            walk(after, seat, own * played[:, number], other, weight)
            for number, after in enumerate(spot.after)
        ],
        axis=1,
    )
    value = (played * values).sum(1)
    np.add.at(spot.regrets, spot.rows, other[:, None] * (values - value[:, None]))
    np.maximum(spot.regrets, 0.0, out=spot.regrets)
    np.add.at(spot.weights, spot.rows, weight * own[:, None] * played)
    return value


def equilibrium(games: Sequence, *, rounds: int) -> dict[str, dict[str, float]]:
    """The average strategy of both seats, of later rounds more."""
    root, ones = make_spot(games), np.ones(len(games))
    for number in range(rounds):
        for seat in range(2):
            walk(root, seat, ones, ones, number + 1.0)
    strategy: dict[str, dict[str, float]] = {}
    spots = [root]
    while spots:
        spot = spots.pop()
        spots += spot.after
        if spot.seat is not None:
            for view, row in zip(spot.views, chances(spot.weights), strict=True):
                strategy[view] = dict(zip(spot.actions, row.tolist(), strict=True))
    return strategy
