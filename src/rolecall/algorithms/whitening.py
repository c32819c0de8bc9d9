"""Scales the advantages of a whole step to spread 1; constant ones become 0."""

from __future__ import annotations

import numpy as np

from rolecall.algorithms.groups import CreditedTurn
from rolecall.core.credit import Whitened
from rolecall.core.gae import Doubles
from rolecall.core.types import Turn, group_by


def whiten(said: list[CreditedTurn], *, centre: bool) -> None:
    """Divide advantages by their spread over a policy's tokens, once; constant ones become 0."""
    for turns in group_by([turn for _, turn in said], "policy"):
        of = f"the tokens of policy {turns[0].policy}"
        _rescale(turns, centre=centre, floor=1e-8, of=of)


def whiten_families(turns: list[Turn], families: dict[str, str]) -> None:
    """Mean 0 and spread 1 over the tokens of each task family (2510.04206); scope batch.

    `turns`: those that one policy trains on; `families` by Turn.task. One token each, families
    [2, -2] and [.2, -.2] -> all +-.7071. A constant family becomes 0.
    """
    for family in group_by(turns, lambda turn: families[turn.task]):
        of = f"the tokens of task family {families[family[0].task]}"
        _rescale(family, centre=True, floor=1e-6, of=of)


def whiten_turns(turns: list[Turn]) -> None:
    """Mean 0 and spread 1 over turns; every turn is one sample."""
    values = [float(turn.advantages[0]) for turn in turns if turn.advantages is not None]
    _give(turns, np.array(values), centre=True, floor=1e-8, of="the turns of the step")


def divide_turns(turns: list[Turn], *, of: str) -> None:
    """Divide advantages by their spread over turns, unless nothing varies."""
    values = [float(turn.advantages[0]) for turn in turns if turn.advantages is not None]
    if len(values) > 1 and max(values) > min(values):
        _give(turns, np.array(values), centre=False, floor=1e-6, of=of)


def _rescale(turns: list[Turn], *, centre: bool, floor: float, of: str) -> None:
    """Over all tokens of these turns."""
    values = np.concatenate([turn.advantages for turn in turns]).astype(np.float64)
    _give(turns, values, centre=centre, floor=floor, of=of)


def _give(turns: list[Turn], values: Doubles, *, centre: bool, floor: float, of: str) -> None:
    """Rescale the turns by the mean and spread of `values`; `floor` is added to the spread."""
    is_constant = len(values) < 2 or values.max() == values.min()
    mean = float(values.mean()) if centre and not is_constant else 0.0
    std = 0.0 if is_constant else float(values.std(ddof=1))
    for turn in turns:
        turn.give_credit(Whitened(mean, std, len(values), floor, of))
