"""Scores a review of a paper by the rating that it gives, as ReviewRL does (2508.10308)."""

from __future__ import annotations

import math
import re

from rolecall.core.tags import THINK_END

RATING = re.compile(r"rating[:\s]*(\d+(?:\.\d+)?)", re.IGNORECASE)
LEAST, MOST = 1.0, 10.0  # ratings
SPREAD = 1.2  # of the bell over a rating's error
WORST_ERROR = 1.0  # a larger one is worth nothing
PENALTY = 0.125  # of each thing that a review lacks
HEADING = re.compile(r"^#{2,}(.*)$", re.MULTILINE)
SECTIONS = ("Summary", "Strengths", "Weaknesses")


def score_review(text: str, rating: float) -> float:
    """Return 0 to 1: a bell over the error of the last rating, less what the review lacks.

    It must think first, in `<think>`, and have the sections `## Summary`, `## Strengths` and
    `## Weaknesses` with words in them. With all of these "Rating: 6" scores 1 where the reference
    says 6, 0.71 where it says 7, and 0 where it says 8.
    """
    stated = RATING.findall(text)
    likeness = 0.0
    if stated:
        error = abs(min(max(float(stated[-1]), LEAST), MOST) - rating)
        if error <= WORST_ERROR:
            likeness = math.exp(-(error**2) / (2 * SPREAD**2))
    missing = (THINK_END not in text) + len(set(SECTIONS) - _sections(text))
    return max(0.0, likeness - PENALTY * missing)


def _sections(text: str) -> set[str]:
    """Return the headings of `##` or `###` that something stands under."""
    headings = list(HEADING.finditer(text))
    ends = [heading.start() for heading in headings] + [len(text)]
    return {
        heading[1].strip(" \t")
        for heading, end in zip(headings, ends[1:], strict=True)
        if text[heading.end() : end].strip() and not heading[0].startswith("####")
    }
