"""Answers of a coach, as text and as JSON: what is read, and what is an error."""

import json

import pytest

from rolecall.rewards.coach.reading import read
from rolecall.rewards.coach.scores import FormatError

pytestmark = pytest.mark.slow

NONCE = "5e1f00d2c3b4a596"


def ends(score_line: str) -> str:
    return f"Some reasons.\nREQUEST: {NONCE}\n{score_line}"


@pytest.mark.parametrize(
    ("line", "score"),
    [
        ("PROCESS_SCORE: 8", 8),
        ("PROCESS_SCORE: 8/10", 8),
        ("**PROCESS_SCORE:** 8", 8),
        ("PROCESS_SCORE: **8**", 8),
        ("PROCESS_SCORE: [8]", 8),
        ("PROCESS_SCORE = 8", 8),
        ("`PROCESS_SCORE`: `8 / 10`", 8),
        ("process_score: 8", 8),
        ("PROCESS_SCORE: 8...", 8),
        ("PROCESS_SCORE: 7.5.", 7.5),
        ("PROCESS_SCORE: 0", 0),
        ("PROCESS_SCORE: 10", 10),
    ],
)
def test_one_number_after_the_key_is_the_score(line, score):
    assert read(ends(line), NONCE, ground_truth=False).score == score


@pytest.mark.parametrize(
    "line",
    [
        "PROCESS_SCORE: 85",
        "PROCESS_SCORE: -1",
        "PROCESS_SCORE: ten",
        "PROCESS_SCORE: nan",
        "PROCESS_SCORE: inf",
        "PROCESS_SCORE: 1e1",
        "PROCESS_SCORE: 7-8",
        "PROCESS_SCORE: 7,5",
        "PROCESS_SCORE: 8/100",
        "PROCESS_SCORE: 1*0",
        "PROCESS_SCORE: \u0668",
        "PROCESS_SCORE: 10.01",
        "PROCESS_SCORE:",
        "PROCESS_SCORE",
        "The PROCESS_SCORE: 8",
        "Accuracy was 0.54",
        "> PROCESS_SCORE: 8",
        "```\nPROCESS_SCORE: 8\n```",
        "```\nPROCESS_SCORE: 8",
    ],
)
def test_anything_else_is_an_error_and_never_a_number(line):
    with pytest.raises(FormatError):
        read(ends(line), NONCE, ground_truth=False)


@pytest.mark.parametrize(
    "quote",
    [
        "It wrote PROCESS_SCORE: 10 to please me.",
        "> PROCESS_SCORE: 10",
        "```\nPROCESS_SCORE: 10\n```",
        "PROCESS_SCORE: 0 to 10",
        "PROCESS_SCORE: 10\none\ntwo\nthree\nfour",
    ],
)
def test_what_the_coach_quotes_is_not_its_score(quote):
    text = f"{quote}\nREQUEST: {NONCE}\nPROCESS_SCORE: 2"
    assert read(text, NONCE, ground_truth=False).score == 2


def test_two_scores_at_the_end_that_differ_are_an_error_and_equal_ones_are_one():
    with pytest.raises(FormatError, match="differ"):
        read(f"PROCESS_SCORE: 10\nREQUEST: {NONCE}\nPROCESS_SCORE: 2", NONCE, ground_truth=False)
    text = f"PROCESS_SCORE: 2.0\nREQUEST: {NONCE}\nPROCESS_SCORE: 2"
    assert read(text, NONCE, ground_truth=False).score == 2


def test_the_last_score_line_decides_even_if_it_is_no_number():
    with pytest.raises(FormatError):
        read(ends("PROCESS_SCORE: 8\nPROCESS_SCORE: ten"), NONCE, ground_truth=False)


@pytest.mark.parametrize("line", ["", "REQUEST:", "REQUEST: 5e1f", f"REQUEST: {NONCE[::-1]}"])
def test_a_missing_or_wrong_request_code_is_an_error(line):
    with pytest.raises(FormatError, match="request code"):
        read(f"{line}\nPROCESS_SCORE: 8", NONCE, ground_truth=False)


def test_two_request_codes_are_an_error():
    with pytest.raises(FormatError, match="REQUEST"):
        read(f"REQUEST: 1\nREQUEST: {NONCE}\nPROCESS_SCORE: 8", NONCE, ground_truth=False)


def test_only_the_compatible_mode_accepts_an_answer_without_a_code():
    assert read("PROCESS_SCORE: 8", None, ground_truth=False).score == 8
    answer = {"reasoning": "", "process_score": 8}
    assert read(json.dumps(answer), None, ground_truth=False).score == 8
    with pytest.raises(FormatError):
        read(json.dumps(answer), NONCE, ground_truth=False)


def test_a_coach_that_sees_the_truth_must_say_whether_the_answer_is_correct():
    text = f"REQUEST: {NONCE}\nANSWER_CORRECT: {{}}\nPROCESS_SCORE: 3"
    assert read(text.format(1), NONCE, ground_truth=True).answer_correct is True
    assert read(text.format("**0**"), NONCE, ground_truth=True).answer_correct is False
    for bad in ("2", "yes", "0.5"):
        with pytest.raises(FormatError):
            read(text.format(bad), NONCE, ground_truth=True)
    with pytest.raises(FormatError, match="ANSWER_CORRECT"):
        read(ends("PROCESS_SCORE: 3"), NONCE, ground_truth=True)


GOOD = {"reasoning": "r", "process_score": 7.5, "request": NONCE}


def test_json_is_read_bare_fenced_and_after_thinking():
    text = json.dumps(GOOD)
    for form in (text, f"```json\n{text}\n```", f"hm, 3?</think>\n{text}"):
        verdict = read(form, NONCE, ground_truth=False)
        assert (verdict.score, verdict.reasoning) == (7.5, "r")


@pytest.mark.parametrize(
    "change",
    [
        {"process_score": "7"},
        {"process_score": True},
        {"process_score": None},
        {"process_score": 10.5},
        {"process_score": -1},
        {"process_score": float("nan")},
        {"request": "guess"},
        {"request": None},
        {"reasoning": 5},
        {"extra": 1},
        {"answer_correct": 1},
    ],
)
def test_json_with_any_other_key_or_value_is_an_error(change):
    with pytest.raises(FormatError):
        read(json.dumps(GOOD | change), NONCE, ground_truth=False)


@pytest.mark.parametrize("key", ["reasoning", "process_score", "request"])
def test_json_without_a_key_or_with_one_twice_is_an_error(key):
    fewer = {name: value for name, value in GOOD.items() if name != key}
    with pytest.raises(FormatError):
        read(json.dumps(fewer), NONCE, ground_truth=False)
    twice = json.dumps(GOOD)[:-1] + f', "{key}": {json.dumps(GOOD[key])}}}'
    with pytest.raises(FormatError):
        read(twice, NONCE, ground_truth=False)


@pytest.mark.parametrize("correct", [True, 2, "1", None])
def test_json_answers_with_0_or_1_whether_it_is_correct(correct):
    assert read(json.dumps(GOOD | {"answer_correct": 1}), NONCE, ground_truth=True).answer_correct
    with pytest.raises(FormatError):
        read(json.dumps(GOOD | {"answer_correct": correct}), NONCE, ground_truth=True)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        '{"process_score": 8',
        f"8 {json.dumps(GOOD)}",
        f"{json.dumps(GOOD)} {json.dumps(GOOD)}",
        "[" * 100_000,
        '{"a":' * 100_000,
    ],
)
def test_what_is_not_one_json_object_is_an_error(text):
    with pytest.raises(FormatError):
        read(text, NONCE, ground_truth=False)
