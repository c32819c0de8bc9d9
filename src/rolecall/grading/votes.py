"""Reads the answers of attempts in one spelling, and elects the one that most attempts give."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

from rolecall.core.tags import find_box, find_tag
from rolecall.core.types import Episode
from rolecall.grading.math.tidy import tidy

FRACTION = re.compile(r"^(-?)\\frac\{?(\d+?)\}?\{?(\d+)\}?$")

Vote = str | Fraction


def read_vote(episode: Episode) -> Vote | None:
    """Return an attempt's answer in the spelling that is counted; None if it gives none.

    It is the last \\boxed{}, else the last `<answer>`. 0.5, 1/2 and \\frac12 are one answer.
    """
    text = str(episode.answer or "")
    box = find_box(text)
    if box is None:
        tagged = find_tag(text, "answer")
        return tagged.casefold() or None if tagged else None
    spelling = tidy(box)
    try:
        return Fraction(FRACTION.sub(r"\1\2/\3", spelling))
    except (ValueError, ZeroDivisionError):
        return spelling or None


def elect(votes: Sequence[Vote | None]) -> Vote | None:
    """Return the most frequent answer, of a tie the first: [2, 3, None, 3, 2] -> 2."""
    counts = Counter(vote for vote in votes if vote is not None)
    return max(counts, key=counts.__getitem__, default=None)
