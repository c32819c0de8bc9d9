"""Says what a joint step of two cooks does, and how many soups can be served at best.

A small Overcooked (1910.05789) without a map: fetch onions, fill the pot, wait for the soup, fill a
plate, serve it. A place has room for one cook, so two who do the same thing lose a step.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

ACTIONS = ("onion", "pot", "plate", "soup", "serve", "wait")
NOTHING, ONION, PLATE, SOUP = "nothing", "an onion", "a plate", "a soup"


@dataclass(frozen=True, slots=True)
class Kitchen:
    """The kitchen between two steps."""

    onions: int  # in the pot
    cooking: int  # steps until the soup is done, once the pot is full
    hands: tuple[str, str]  # what each cook holds
    steps: int  # left
    size: int  # onions that fill the pot
    time: int  # steps that a soup cooks

    def view(self) -> str:
        if self.onions < self.size:
            pot = f"{self.onions} of {self.size} onions"
        else:
            pot = f"cooking, {self.cooking} more" if self.cooking else "soup is ready"
        return (
            f"Steps left: {self.steps}. Pot: {pot}. "
            f"Cook 1 holds {self.hands[0]}. Cook 2 holds {self.hands[1]}."
        )

    def is_possible(self, cook: int, action: str) -> bool:
        """Return whether a cook, 0 or 1, could do this if nobody else were in the way."""
        held, is_full = self.hands[cook], self.onions == self.size
        return {
            "onion": held == NOTHING,
            "plate": held == NOTHING,
            "pot": held == ONION and not is_full,
            "soup": held == PLATE and is_full and self.cooking == 0,
            "serve": held == SOUP,
            "wait": True,
        }.get(action, False)


def play_step(kitchen: Kitchen, actions: tuple[str, str]) -> tuple[Kitchen, int, list[int]]:
    """Return the kitchen after a joint step, the soups that were served, and who lost the step.

    What cook 1 does happens first. Who does the same as cook 1, or what cannot be done, loses the
    step: ("onion", "onion") with empty hands -> cook 1 holds an onion, cook 2 nothing.
    """
    was_full = kitchen.onions == kitchen.size
    after, served, lost = kitchen, 0, []
    for cook, action in enumerate(actions):
        is_in_the_way = cook == 1 and action == actions[0] != "wait" and 0 not in lost
        if is_in_the_way or not after.is_possible(cook, action):
            lost.append(cook)
            continue
        after = _act(after, cook, action)
        served += action == "serve"
    cooking = max(0, after.cooking - 1) if was_full else after.cooking
    return replace(after, cooking=cooking, steps=after.steps - 1), served, lost


def _act(kitchen: Kitchen, cook: int, action: str) -> Kitchen:
    held = {"onion": ONION, "plate": PLATE, "pot": NOTHING, "soup": SOUP, "serve": NOTHING}
    if action in held:
        hands = list(kitchen.hands)
        hands[cook] = held[action]
        kitchen = replace(kitchen, hands=(hands[0], hands[1]))
    if action == "pot":
        return replace(kitchen, onions=kitchen.onions + 1, cooking=kitchen.time)
    return replace(kitchen, onions=0, cooking=0) if action == "soup" else kitchen


@cache
def most_soups(kitchen: Kitchen) -> int:
    """Return how many soups two cooks can serve at best in the steps that are left."""
    if kitchen.steps == 0:
        return 0
    return max(soups for _, _, soups in _joint_steps(kitchen))


def best_action(kitchen: Kitchen, heard: str | None = None) -> str:
    """Return an action of the best joint steps: of cook 2 where it heard cook 1's, else of cook 1.

    Of several the last by which the most is in the hands and in the pot, so that nobody waits for
    nothing.
    """
    choices = [
        (soups, -(one + two).count("wait"), two if heard is not None else one)
        for one, two, soups in _joint_steps(kitchen, heard)
    ]
    return max(choices)[2]


def _joint_steps(kitchen: Kitchen, heard: str | None = None) -> list[tuple[str, str, int]]:
    """Return possible joint steps, and how many soups can be served with each."""
    firsts = [heard] if heard is not None else ACTIONS
    joint = []
    for one in firsts:
        for two in ACTIONS:
            after, served, lost = play_step(kitchen, (one, two))
            if (heard is None and lost) or 1 in lost:
                continue
            joint.append((one, two, served + most_soups(after)))
    return joint
