"""Reads a verdict from a coach's answer, or raises FormatError; nothing is clamped or guessed.

'...\nREQUEST: 5e1f\n**PROCESS_SCORE:** 8/10' -> 8.0; 'PROCESS_SCORE: 85' -> FormatError.
"""

from __future__ import annotations

import json
import re

from rolecall.core.json_types import JsonObject, JsonValue
from rolecall.core.tags import visible
from rolecall.rewards.coach.scores import FormatError, Verdict
from rolecall.runtime.secret_texts import excerpt

NUM_LAST_LINES = 5
KEYS = ("REQUEST", "PROCESS_SCORE", "ANSWER_CORRECT")

# Emphasis and brackets that a coach puts around key and value. Nothing gives back what it took
# (`*+`), so an unreadable line takes no longer than a readable one.
_MARKS = r"[\s*_`\[\]]*+"
KEY_LINE = re.compile(
    rf"{_MARKS}({'|'.join(KEYS)}){_MARKS}[:=](.*)", re.IGNORECASE | re.ASCII | re.DOTALL
)
# A number, and the scale that it is said to be of.
NUMBER = re.compile(
    rf"{_MARKS}([0-9]+(?:\.[0-9]+)?){_MARKS}(?:/{_MARKS}(10|1){_MARKS})?[\s*_`\[\].]*+", re.ASCII
)


def read(text: str, nonce: str | None, *, ground_truth: bool, scale: int = 10) -> Verdict:
    """Return the verdict of an answer, as JSON or as text.

    nonce: code that the answer must repeat; None accepts an answer without one. ground_truth:
    whether the coach also has to say if the answer is correct. scale: the highest score. Raises
    FormatError.
    """
    for candidate in (text, visible(text)):
        inner = _unfenced(candidate.strip())
        if inner.startswith("{") and inner.endswith("}"):
            return read_json(inner, nonce, ground_truth=ground_truth, scale=scale)
    return read_text(text, nonce, ground_truth=ground_truth, scale=scale)


def _unfenced(text: str) -> str:
    """Return the text between "```json" and "```", if that is all."""
    first, _, rest = text.partition("\n")
    if first.rstrip() in ("```", "```json") and rest.endswith("\n```"):
        return rest.removesuffix("```").strip()
    return text


def read_json(text: str, nonce: str | None, *, ground_truth: bool, scale: int) -> Verdict:
    """Exactly the asked keys, each once. Raises FormatError."""
    try:
        answer = json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"not JSON: {error}") from error
    needed = {"reasoning", "process_score"} | ({"answer_correct"} if ground_truth else set())
    needed |= {"request"} if nonce is not None else set()
    if not needed <= set(answer) <= needed | {"request"}:
        raise FormatError(f"the keys are {sorted(answer)}, not {sorted(needed)}")
    _check_request(answer.get("request"), nonce)
    score, correct = answer["process_score"], answer.get("answer_correct")
    if isinstance(score, bool) or not isinstance(score, int | float):
        raise FormatError(f"process_score is no number: {score!r}")
    if not isinstance(answer["reasoning"], str):
        raise FormatError("reasoning is no text")
    if ground_truth and (isinstance(correct, bool) or correct not in (0, 1)):
        raise FormatError(f"answer_correct is {correct!r}, not 0 or 1")
    right = bool(correct) if ground_truth else None
    return Verdict(_in_range(score, scale), answer["reasoning"], right, scale)


def read_text(text: str, nonce: str | None, *, ground_truth: bool, scale: int) -> Verdict:
    """Only the last five lines count, without quotes and fenced blocks. Raises FormatError."""
    values: dict[str, list[str]] = {key: [] for key in KEYS}
    for line in _own_lines(text):
        match = KEY_LINE.fullmatch(line)
        if match:
            values[match[1].upper()].append(match[2])
    requests = {value.strip("*_`[]. \t") for value in values["REQUEST"]}
    if len(requests) > 1:
        raise FormatError("several REQUEST lines differ")
    _check_request(next(iter(requests), None), nonce)
    score = _decide("PROCESS_SCORE", values["PROCESS_SCORE"], scale)
    correct = None
    if ground_truth:
        correct = _decide("ANSWER_CORRECT", values["ANSWER_CORRECT"], 1)
        if correct not in (0, 1):
            raise FormatError(f"ANSWER_CORRECT is {correct}, not 0 or 1")
    right = None if correct is None else bool(correct)
    return Verdict(_in_range(score, scale), text.strip(), right, scale)


def without_form(text: str) -> str:
    """Return an answer without the lines that only we read: the score and the request's code."""
    return "\n".join(line for line in text.splitlines() if not KEY_LINE.fullmatch(line)).strip()


def _own_lines(text: str) -> list[str]:
    """Return the last non-empty lines that the coach did not quote."""
    lines, fenced = [], False
    for line in text.splitlines():
        mark = line.lstrip().startswith("```")
        if line.strip():
            lines.append("" if mark or fenced or line.lstrip().startswith(">") else line)
        fenced = fenced != mark
    return lines[-NUM_LAST_LINES:]


def _decide(key: str, values: list[str], scale: int) -> float:
    """Return the last value; raises FormatError if another one could be meant as well."""
    if not values:
        raise FormatError(f"no {key} line at the end")
    numbers = [NUMBER.fullmatch(value) for value in values]
    if numbers[-1] is None:
        raise FormatError(f"{key} is no number: {excerpt(values[-1].strip(), 40)!r}")
    if any(number and number[2] not in (None, str(scale)) for number in numbers):
        raise FormatError(f"{key} is not of {scale}: {excerpt(values[-1].strip(), 40)!r}")
    scores = {float(number[1]) for number in numbers if number and 0 <= float(number[1]) <= scale}
    if len(scores | {float(numbers[-1][1])}) > 1:
        raise FormatError(f"several {key} lines differ: {sorted(scores)}")
    return float(numbers[-1][1])


def _check_request(given: object, nonce: str | None) -> None:
    """Check that an answer has this request's code, if any; raises FormatError otherwise."""
    if (nonce is not None or given is not None) and given != nonce:
        expected = "none was asked for" if nonce is None else "it must be this request's"
        raise FormatError(f"the request code is {excerpt(given, 40)!r}; {expected}")


def _in_range(score: float, scale: int) -> float:
    if not 0 <= score <= scale:
        raise FormatError(f"the score {score} is not within 0..{scale}")
    return float(score)


def _unique(pairs: list[tuple[str, JsonValue]]) -> JsonObject:
    if len({key for key, _ in pairs}) < len(pairs):
        raise ValueError("a key occurs twice")
    return dict(pairs)
