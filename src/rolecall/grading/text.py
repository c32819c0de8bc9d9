"""Measures how near a text is to its references: ROUGE, BLEU or chrF.

ROUGE counts words (Lin 2004), BLEU stretches of words (Papineni et al. 2002), chrF stretches of
characters (Popovic 2015). ROUGE reads Latin letters and digits alone, chrF any script.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Literal

from rolecall.core.optional import optional
from rolecall.core.types import Task
from rolecall.grading.qa import targets

Metric = Literal["rouge1", "rouge2", "rougeL", "chrf", "bleu"]
REVIEW: Literal["review"] = "review"  # the rating of a review, which has a world of its own
Measure = Callable[[str, Sequence[str]], float]  # (text, references) -> 0 to 1


def measure(metric: Metric) -> Measure:
    """Return the measure of a metric; raises ConfigError if its package is not installed."""
    if metric in ("chrf", "bleu"):
        return _sacrebleu(metric)
    scorer = optional("rouge_score.rouge_scorer", extra="text").RougeScorer([metric])

    def rouge(text: str, references: Sequence[str]) -> float:
        """Return the F-measure, the best over several references."""
        return float(scorer.score_multi(references, text)[metric].fmeasure)

    return rouge


def _sacrebleu(metric: Metric) -> Measure:
    sacrebleu = optional("sacrebleu", extra="text")
    if metric == "chrf":
        scorer = sacrebleu.CHRF()
    else:
        # Of a sentence with fewer than four words only the orders that it has.
        scorer = sacrebleu.BLEU(effective_order=True)

    def score(text: str, references: Sequence[str]) -> float:
        """Score a text against all references at once, as the measure itself does."""
        return min(1.0, float(scorer.sentence_score(text, references).score) / 100)

    return score


def check_words(task: Task) -> None:
    """Check that references have a word that ROUGE reads; raises ValueError otherwise.

    With such a reference every answer would score 0.
    """
    if not any(re.search("[a-z0-9]", text.lower()) for text in targets(task.answer)):
        raise ValueError("a reference without Latin letters or digits, all that ROUGE reads: chrf")
