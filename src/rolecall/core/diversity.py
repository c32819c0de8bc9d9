"""Measures how much answers differ: 1 less the Jaccard similarity of their sets of token bigrams.

Identical answers have the distance 0, and those without a common bigram 1. Sets of bigrams are what
distinct-2 (1510.03055) counts. A distance of two answers, unlike distinct-n or self-BLEU
(1802.01886), also says which of them differs from the others, and is the cheapest of the three.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations, pairwise
from statistics import fmean

from rolecall.core.types import Episode, Turn, group_by

Token = int | str
Bigrams = frozenset[tuple[Token, Token]]
START = ""  # stands before the first token, so that an answer of one token has a bigram


def turns_by_agent(episode: Episode) -> dict[str, list[Turn]]:
    """Return the played turns of each agent."""
    played = group_by((turn for turn in episode.turns if turn.chosen), "agent")
    return {turns[0].agent: turns for turns in played}


def token_bigrams(turns: Iterable[Turn]) -> Bigrams:
    """Return the bigrams of what an agent said in an attempt, of words where a turn has no tokens.

    Tokens 4, 2 -> {("", 4), (4, 2)}.
    """
    answers: list[Sequence[Token]] = [
        turn.visible.split() if turn.tokens is None else turn.tokens.tolist() for turn in turns
    ]
    return _bigrams(answers)


def word_bigrams(turns: Iterable[Turn]) -> Bigrams:
    """Return the bigrams of the words, which agents with other tokenizers have in common."""
    return _bigrams([turn.visible.split() for turn in turns])


def _bigrams(answers: Iterable[Sequence[Token]]) -> Bigrams:
    return frozenset(pair for tokens in answers for pair in pairwise([START, *tokens]))


def distance(one: Bigrams, other: Bigrams) -> float:
    """Return 1 - |A and B| / |A or B|; two empty answers are the same.

    Tokens 1, 2, 3 and 1, 2, 4 share 2 of 4 bigrams -> .5; 1, 2 and 1, 2 -> 0; 1 and 2 -> 1.
    """
    common = len(one & other)
    either = len(one) + len(other) - common
    return 1.0 - common / either if either else 0.0


def mean_distance(answers: Sequence[Bigrams]) -> float | None:
    """Return the mean distance of all pairs; None of fewer than two answers.

    Tokens 1, 2, 3; 1, 2, 4; and 9 -> (.5 + 1 + 1) / 3.
    """
    if len(answers) < 2:
        return None
    return fmean(distance(one, other) for one, other in combinations(answers, 2))
