"""Scales the advantages of a whole step to spread 1; constant ones become 0."""

from __future__ import annotations

import numpy as np

from rolecall.algorithms.groups import CreditedTurn
from rolecall.core.types import Turn, group_by, spread


def whiten(said: list[CreditedTurn], *, centre: bool) -> None:
    """Divide advantages by their spread over a policy's tokens, once; constant ones become 0."""
    for turns in group_by([turn for _, turn in said], "policy"):
        _rescale(turns, centre=centre, least=1e-8)


def whiten_families(turns: list[Turn], families: dict[str, str]) -> None:
    """Mean 0 and spread 1 over the tokens of each task family (2510.04206); scope batch.

    `turns`: those that one policy trains on; `families` by Turn.task. One token each, families
    [2, -2] and [.2, -.2] -> all +-.7071. A constant family becomes 0.
    """
    for family in group_by(turns, lambda turn: families[turn.task]):
        _rescale(family, centre=True, least=1e-6)


def _rescale(turns: list[Turn], *, centre: bool, least: float) -> None:
    """Over all tokens of these turns; `least` is added to their spread."""
    values = np.concatenate([turn.advantages for turn in turns]).astype(np.float64)
    if len(values) < 2 or values.max() == values.min():
        for turn in turns:
            turn.advantages = spread(turn, 0.0)
        return
    mean, std = (values.mean() if centre else 0.0), values.std(ddof=1)
    for turn in turns:
        assert turn.advantages is not None
        scaled = (turn.advantages.astype(np.float64) - mean) / (std + least)
        turn.advantages = scaled.astype(np.float32)


def whiten_turns(turns: list[Turn]) -> None:
    """Mean 0 and spread 1 over turns; every turn is one sample."""
    values = [float(turn.advantages[0]) for turn in turns if turn.advantages is not None]
    constant = len(values) < 2 or max(values) == min(values)
    mean, std = (0.0, 0.0) if constant else (float(np.mean(values)), float(np.std(values, ddof=1)))
    for turn, value in zip(turns, values, strict=True):
        turn.advantages = spread(turn, 0.0 if constant else (value - mean) / (std + 1e-8))
