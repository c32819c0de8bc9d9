"""Asks about an answer by the user's own prompt, and reads the score as the user says.

'Rate {answer}.' with the score `Score: ([0-9]+)` -> 'Rate 42.' and 'Good. Score: 7' -> 7.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from rolecall.core.tags import visible
from rolecall.grading.qa import targets
from rolecall.rewards.coach.rendering import Action, Prompt
from rolecall.rewards.coach.scores import FormatError, Verdict
from rolecall.runtime.secret_texts import excerpt, scrub

MOST_SHOWN = 200  # characters of a reply in a message
FORM = "prompted-1"  # a part of the cache's key
PLACEHOLDER = re.compile(r"\{(task|answer|reference)\}")
TAGGED = r"<score>\s*(-?\d+(?:\.\d+)?)\s*</score>"

Reading = str | Mapping[str, float]  # a pattern whose group is the number, or words with theirs


@dataclass(frozen=True, slots=True)
class PromptedForm:
    """A prompt with placeholders, and how a reply's score is read.

    Raises ValueError for a prompt without the answer, and for a score that cannot be read.
    """

    prompt: str
    score: Reading
    low: float
    high: float
    reminder: str = ""

    def __post_init__(self) -> None:
        if "{answer}" not in self.prompt:
            raise ValueError("prompt: it never shows the answer; write {answer} where it stands")
        if not self.low < self.high:
            raise ValueError(
                f"scale: the worst score {self.low:g} is not below the best, {self.high:g}; "
                "write [worst, best]"
            )
        if isinstance(self.score, str):
            _check_pattern(self.score)
        else:
            _check_words(self.score, self.low, self.high)

    @property
    def key(self) -> tuple[object, ...]:
        score = self.score if isinstance(self.score, str) else dict(self.score)
        return (FORM, score, self.low, self.high)

    def render(self, action: Action, *, nonce: str) -> Prompt:
        """Return the prompt with its placeholders filled in; all other braces stay.

        Raises ValueError where it shows a reference and the task has none.
        """
        answer = action.task.answer
        if answer is None and "{reference}" in self.prompt:
            raise ValueError(
                f"rewards.judge.prompt: it shows {{reference}}, and task {action.task.id} has no "
                "reference answer; remove {reference}, or name the column that holds it"
            )
        texts = {
            "task": action.task.prompt,
            "answer": action.answer,
            "reference": "" if answer is None else " or ".join(targets(answer)),
        }
        return Prompt("", PLACEHOLDER.sub(lambda match: texts[match[1]], self.prompt), None)

    def read(self, text: str, action: Action, *, nonce: str) -> Verdict:
        """Return the last score that the text states behind its thinking.

        Raises FormatError if it states none.
        """
        reply = visible(text)
        if isinstance(self.score, str):
            stated = [match[1] for match in re.finditer(self.score, reply)]
        else:
            # A longer word first: "not good" is not good.
            words = "|".join(map(re.escape, sorted(self.score, key=len, reverse=True)))
            stated = re.findall(words, reply, re.IGNORECASE)
        if not stated:
            ending = scrub(reply)[-MOST_SHOWN:]
            raise FormatError(f"no score at the end of {ending!r}")
        return Verdict(self._number(stated[-1]), text.strip(), scale=self.high)

    def _number(self, stated: str) -> float:
        if not isinstance(self.score, str):
            return {word.casefold(): number for word, number in self.score.items()}[
                stated.casefold()
            ]
        try:
            number = float(stated)
        except (TypeError, ValueError):
            raise FormatError(f"the score is no number: {excerpt(stated, 40)!r}") from None
        if not self.low <= number <= self.high:
            raise FormatError(f"the score {number:g} is not within {self.low:g}..{self.high:g}")
        return number

    def share(self, score: float) -> float:
        """Return a score as a share of the scale: 7 of 0 to 10 -> 0.7."""
        return (score - self.low) / (self.high - self.low)


def _check_pattern(pattern: str) -> None:
    try:
        groups = re.compile(pattern).groups
    except re.error as error:
        raise ValueError(f"score: {pattern!r} is no pattern: {error}") from None
    if not groups:
        raise ValueError(
            f"score: {pattern!r} has no group that holds the number; write e.g. 'Score: ([0-9]+)'"
        )


def _check_words(words: Mapping[str, float], low: float, high: float) -> None:
    if not words or "" in words:
        raise ValueError("score: name words with their scores, e.g. {right: 1, wrong: 0}")
    for word, number in words.items():
        if not low <= number <= high:
            raise ValueError(
                f"score.{word}: {number:g} is not within the scale, {low:g} to {high:g}"
            )
