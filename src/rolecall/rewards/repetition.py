"""Takes something from turns that say the same words again and again."""

from __future__ import annotations

from itertools import islice

from rolecall.core.interfaces.environment import World
from rolecall.core.types import Episode


class Repetition:
    """The n-gram penalty of 2502.03373 (appendix C.2), as open-r1 and MARTI compute it on words.

    A turn pays `factor` times the share of its n-grams that occurred before in it. Words are
    lower-case and stand between spaces; a turn of fewer than `size` words pays nothing. The weight
    that a config gives this reward has no part in it: `factor` has.

    size: words of an n-gram.
    factor: the penalty of a turn that never says anything new.
    """

    weighs_itself = True

    def __init__(self, size: int = 3, factor: float = 1.0) -> None:
        if size < 1:
            raise ValueError(f"size is at least 1, got {size}")
        if factor < 0:
            raise ValueError(f"factor is at least 0, got {factor}")
        self.size, self.factor = size, factor

    async def __call__(self, episode: Episode, world: World) -> dict[str, float]:
        """Note the penalties on the turns; nothing is given to whole agents.

        size 1: "a b c" -> 0, "a b a A" -> -.5; size 2: "a b a b" -> -1/3.
        """
        for turn in episode.turns:
            turn.rewards["repetition"] = -self.factor * repeated_share(turn.text, self.size)
        return {}


def repeated_share(text: str, size: int) -> float:
    """Return the share of a text's n-grams of words that occurred before in it, 0 to 1."""
    words = text.lower().split()
    grams = list(zip(*(islice(words, start, None) for start in range(size)), strict=False))
    return 1.0 - len(set(grams)) / len(grams) if grams else 0.0
