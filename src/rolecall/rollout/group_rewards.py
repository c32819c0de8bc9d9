"""Pays the rewards that compare all attempts at a task, once these have ended."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

from rolecall.core.types import Group
from rolecall.rollout.episodes import RolloutContext
from rolecall.rollout.user_code import check_numbers


@runtime_checkable
class PaysGroups(Protocol):
    """A reward that is also asked for a whole group."""

    def pay_group(self, group: Group) -> list[dict[str, float]]:
        """Return what each attempt earns, by agent; "team" is all of them."""
        ...


def pay_groups(context: RolloutContext, groups: Iterable[Group]) -> None:
    """Add to the outcomes what these rewards pay, as a reward of a single episode is added.

    An episode that has been paid, as one that is carried over may be, is not paid again.
    """
    rewards: dict[str, tuple[PaysGroups, float]] = {}
    for name, (candidate, weight) in context.rewards.items():
        reward: object = candidate
        if isinstance(reward, PaysGroups):
            rewards[name] = (reward, weight)
    if not rewards:
        return
    for group in groups:
        for name, (payer, weight) in rewards.items():
            for episode, paid in zip(group, payer.pay_group(group), strict=True):
                what = f"pay_group of reward {name!r}"
                checked = check_numbers(paid, names=context.agents, what=what, call=payer.pay_group)
                for owner, value in checked.items():
                    metric = f"reward/{name}/{owner}"
                    if metric not in episode.metrics:
                        episode.metrics[metric] = value
                        before = episode.rewards.get(owner, 0.0)
                        episode.rewards[owner] = before + weight * value
