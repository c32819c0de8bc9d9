"""Takes something from turns that come near to the longest length, as DAPO does."""

from __future__ import annotations

from rolecall.core.interfaces.environment import World
from rolecall.core.types import Episode


class Overlong:
    """The soft length penalty of DAPO (2503.14476), for any algorithm.

    A turn pays nothing up to `longest - buffer` tokens, then more with each token, and `factor` at
    `longest`. The weight that a config gives this reward has no part in it: `factor` has.

    longest: tokens at which a turn pays all of it.
    buffer: tokens below `longest` at which it begins to pay.
    factor: the whole penalty.
    """

    weighs_itself = True

    def __init__(self, longest: int = 512, buffer: int = 128, factor: float = 1.0) -> None:
        if not 0 < buffer <= longest:
            raise ValueError(f"buffer is in 1..longest ({longest}), got {buffer}")
        if factor < 0:
            raise ValueError(f"factor is at least 0, got {factor}")
        self.longest, self.buffer, self.factor = longest, buffer, factor

    async def __call__(self, episode: Episode, world: World) -> dict[str, float]:
        """Note the penalties on the turns; nothing is given to whole agents.

        longest 100, buffer 20: 80 tokens -> 0, 90 -> -.5, 100 -> -1.
        """
        for turn in episode.turns:
            if turn.tokens is not None:
                excess = min(max(0, len(turn.tokens) - self.longest + self.buffer), self.buffer)
                turn.rewards["overlong"] = -self.factor * excess / self.buffer
        return {}
