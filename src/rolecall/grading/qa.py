"""Measures how well a short answer agrees with the accepted ones, as SQuAD does."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Sequence

PUNCTUATION = str.maketrans("", "", string.punctuation)
ARTICLE = re.compile(r"\b(a|an|the)\b")
VERDICTS = ("yes", "no", "noanswer")  # part of one is no part of the truth


def targets(truth: object) -> list[str]:
    """Return every accepted answer of a data row's truth.

    targets({"target": ["Emma", "Emma (novel)"]}) -> ["Emma", "Emma (novel)"]; targets(7) -> ["7"]

    Raises ValueError for a truth that holds no answer.
    """
    value = truth.get("target") if isinstance(truth, dict) else truth
    if hasattr(value, "tolist"):  # numpy and arrow values, as parquet readers return them
        value = value.tolist()
    listed = list(value) if isinstance(value, (list, tuple)) else [value]
    if not listed or not all(_says_something(answer) for answer in listed):
        raise ValueError(f"truth {truth!r} is not text, a number or a list of them")
    return [str(answer).strip() for answer in listed]


def _says_something(answer: object) -> bool:
    return isinstance(answer, (str, int, float)) and bool(str(answer).strip())


def normalise(text: str) -> str:
    """Lower case, without ASCII punctuation and articles, single spaces.

    normalise("The  Beatles' (first) album.") -> "beatles first album"
    """
    return " ".join(ARTICLE.sub(" ", text.lower().translate(PUNCTUATION)).split())


def exact_match(given: str, accepted: Sequence[str]) -> bool:
    """Return whether the answer equals any accepted one but for what `normalise` takes away."""
    return any(_compared(given) == _compared(answer) for answer in accepted)


def sub_match(given: str, accepted: Sequence[str]) -> bool:
    """Return whether any accepted answer stands in the given one. Long answers win: not for
    training.
    """
    return any(_compared(answer) in _compared(given) for answer in accepted)


def f1(given: str, accepted: Sequence[str]) -> float:
    """Return the best balance of precision and recall over the words of an accepted answer.

    f1("the novel Emma", ["Emma"]) -> 2/3: one word of two is right, and none is missing.
    """
    return max(_f1(_compared(given), _compared(answer)) for answer in accepted)


def _compared(text: str) -> str:
    """Normalise an answer; one of nothing but articles and punctuation stays as it is."""
    return normalise(text) or text.strip().lower()


def _f1(given: str, answer: str) -> float:
    if given != answer and (given in VERDICTS or answer in VERDICTS):
        return 0.0
    answer_words, accepted_words = given.split(), answer.split()
    common = (Counter(answer_words) & Counter(accepted_words)).total()
    return 2 * common / (len(answer_words) + len(accepted_words)) if common else 0.0
