"""Declares a claim: a known answer beside what this code obtains for it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Claim:
    """One known answer: XOR fitted by VDN, expected 0.2500, obtained 0.2500, ok."""

    claim: str
    """One sentence: what was done and what is looked at."""
    expected: str
    """As the paper or the exact calculation says."""
    obtained: str
    """What this code gave."""
    ok: bool
    """Whether `obtained` is within the tolerance of `expected`."""
