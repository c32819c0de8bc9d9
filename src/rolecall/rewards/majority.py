"""Pays attempts that give the answer which most attempts at the task give (TTRL, 2504.16084)."""

from __future__ import annotations

import re
from collections import Counter
from fractions import Fraction

from rolecall.core.interfaces.environment import World
from rolecall.core.tags import find_box
from rolecall.core.types import Episode, Group
from rolecall.grading.math.tidy import tidy

FRACTION = re.compile(r"^(-?)\\frac\{?(\d+?)\}?\{?(\d+)\}?$")


class Majority:
    """The team earns 1 if its answer is that of most attempts at the task, else 0.

    It needs no reference answer: with `rewards: {majority: 1.0}` a team trains on questions alone,
    and its score is only reported. Answers are the last \\boxed{} of each attempt in one spelling,
    so 0.5 and 1/2 are one answer. On a tie the answer that was given first wins. An attempt without
    an answer earns 0 and has no vote. It is paid when all attempts at a task have ended, so an
    evaluation does not pay it.
    """

    async def __call__(self, episode: Episode, world: World) -> dict[str, float]:
        """Pay nothing yet: the other attempts are not known."""
        return {}

    def pay_group(self, group: Group) -> list[dict[str, float]]:
        """Return what each attempt of a group earns: answers 1/2, 3, 0.5 -> 1, 0 and 1."""
        answers = [_read_answer(episode) for episode in group]
        votes = Counter(answer for answer in answers if answer is not None)
        elected = max(votes, key=votes.__getitem__, default=None)  # the first of the largest
        return [{"team": float(answer is not None and answer == elected)} for answer in answers]


def _read_answer(episode: Episode) -> str | Fraction | None:
    """Return an attempt's answer in the spelling that is counted; None if it gives none."""
    box = find_box(str(episode.answer or ""))
    if box is None:
        return None
    text = tidy(box)
    try:
        return Fraction(FRACTION.sub(r"\1\2/\3", text))
    except (ValueError, ZeroDivisionError):
        return text or None
