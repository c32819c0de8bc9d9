"""Splits texts into the words that BM25 counts, alike for passages and queries."""

from __future__ import annotations

import re

WORD = re.compile(r"\w+")

# Lucene's English analysis leaves these out; each would list most of a corpus.
LEFT_OUT = """
a an and are as at be but by for if in into is it no not of on or such that the their then there
these they this to was will with
"""
STOP_WORDS = frozenset(LEFT_OUT.split())


def words(text: str) -> list[str]:
    """Return runs of letters and digits in lower case, without stop words; nothing is stemmed.

    words("Where was Bor-Tal born in 1907?") -> ["where", "bor", "tal", "born", "1907"]
    """
    return [word for word in WORD.findall(text.lower()) if word not in STOP_WORDS]
