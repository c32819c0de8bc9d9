"""Extraction of answers from texts, references from truths, and the plain rules."""

import json
import time
from pathlib import Path

import pytest

from rolecall.grading.math.answers import extract, references
from rolecall.grading.math.rules import quick_equal

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"so \boxed{5}.", "5"),
        (r"\boxed{1} then \boxed{2}", "2"),
        (r"\fbox{\frac{1}{2}} done", r"\frac{1}{2}"),
        (r"\boxed{\left\{ x \mid x > 0 \right\}}", r"\left\{ x \mid x > 0 \right\}"),
        (r"\boxed{\{1}", r"\{1"),
        (r"it is \boxed 5.", "5"),
        (r"it is $\boxed 42$", "42"),
        (r"\boxed{\boxed{7}}", "7"),
        (r"\boxed{3} but then \boxed{\frac{1}{", "3"),
        (r"\boxed{1}</think> no box here", None),
        (r"\boxed{1}</think> \boxed{2}</think> \boxed{3}", "3"),
        (r"\boxed{}", ""),
        (r"\boxedx{5}", None),
        ("the answer is 5", None),
        ("", None),
    ],
)
def test_the_last_complete_box_after_thinking_is_the_answer(text, answer):
    assert extract(text) == answer


def test_a_text_of_unclosed_boxes_is_read_in_linear_time():
    began = time.monotonic()
    assert extract(r"\boxed{" * 20_000) is None
    assert time.monotonic() - began < 2.0


@pytest.mark.parametrize(
    "unit", ["1", "(", "a", " ", "1,", "(1,", "{", "\\frac", "\\text{a}", "1 ", "a1", "x=", "^"]
)
def test_long_answers_cost_the_rules_little_time(unit):
    began = time.monotonic()
    quick_equal((unit * 2000)[:2000], "5")
    quick_equal((unit * 2000)[:1999] + "!", "1, 2")
    assert time.monotonic() - began < 1.0


def test_a_box_far_before_the_end_of_the_text_is_found():
    assert extract(r"\boxed{8}" + " and so on" * 500) == "8"


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("2 + 3 = 5\n#### 1,234", "1,234"),
        ("Answer: 17.", "17"),
        ("**Answer:** $\\frac{1}{2}$", "\\frac{1}{2}"),
        ("The answer is 12", "12"),
        ("I count 3 and then -4.5 apples.", "-4.5"),
        ("none at all", None),
        ("Answer: 3</think> 8", "8"),
        (r"\boxed{1}, answer: 2", "1"),
    ],
)
def test_without_a_box_the_fallback_reads_a_stated_answer_or_the_last_number(text, answer):
    assert extract(text, form="any") == answer


@pytest.mark.parametrize(
    ("truth", "accepted"),
    [
        ("142\n", ["142"]),
        (142.0, ["142"]),
        (7, ["7"]),
        (0.25, ["0.25"]),
        (-34.0, ["-34"]),
        (["1", 2.0], ["1", "2"]),
        ("080 or 081 (both were accepted)", ["080", "081"]),
        ("1, 2, or 3 (all were accepted)", ["1", "2", "3"]),
        ("x=1 or x=2", ["x=1 or x=2"]),
        ("$\\pi$", ["\\pi"]),
        ("$$5$$", ["5"]),
        ("$a$ and $b$", ["$a$ and $b$"]),
        (r"336^\circ", [r"336^\circ"]),
        ("48/2 = <<48/2=24>>24\n#### 1,010", ["1010"]),
        (r"so we get \boxed{\frac{1}{2}}", [r"\frac{1}{2}"]),
    ],
)
def test_a_truth_yields_each_accepted_reference(truth, accepted):
    assert references(truth) == accepted


def test_arrays_of_a_parquet_file_are_lists_of_references():
    numpy = pytest.importorskip("numpy")
    assert references(numpy.array(["1", "2"], dtype=object)) == ["1", "2"]


@pytest.mark.parametrize("truth", ["", "  ", None, [], float("nan"), {"target": "5"}, True])
def test_a_truth_without_an_answer_is_an_error(truth):
    with pytest.raises(ValueError, match="truth"):
        references(truth)


@pytest.mark.parametrize(
    ("given", "truth", "equal"),
    [
        ("1 000", "1000", True),
        ("10,\\!080", "10080", True),
        ("-1\\frac12", "-1.5", True),
        ("3 1/2", "3.5", True),
        ("18 dollars per day", "18", True),
        ("5 million", "5", None),
        ("2 theta", "2", None),
        ("\\$32,\\!348", "32348", True),
        ("864 \\mbox{ inches}^2", "864", True),
        ("\\text{5 cm}", "5", True),
        ("1,2,3", "3, 2, 1", True),
        ("1,2,2", "1,1,2", False),
        ("\\{5\\}", "5", True),
        ("x \\in [0,1]", "[0,1]", True),
        ("x=5.0", "x=5", True),
        ("x=5", "y=5", None),
        ("50\\%", "0.5", True),
        ("50\\%", "5", False),
        ("East", "\\text{east}", True),
        ("5", "\\text{east}", False),
        ("(" * 500 + "5" + ")" * 500, "6", None),
        ("1e99999", "10", None),
        ("\\frac{1}{0}", "0", None),
        ("1, 2", "(1,2)", True),
        ("2, 1", "(1,2)", False),
        ("(3,4,5)", "3, 4, 5", True),
        ("1, 2", "(1,2]", False),
        ("5,\\text{ and }6", "6,5", True),
        ("1, x, 2", "x, 2, 1", True),
        ("1, \\pi", "1, 3", None),
    ],
)
def test_plain_rules_decide_plain_answers_and_leave_the_rest_open(given, truth, equal):
    assert quick_equal(given, truth) is equal


@pytest.mark.parametrize("name", ["gsm8k_test.jsonl", "gsm8k_train_1000.jsonl"])
def test_rules_alone_decide_every_gsm8k_answer(name):
    if not DATA.is_dir():
        pytest.skip(f"{DATA} is not here")
    for line in (DATA / name).read_text(encoding="utf-8").splitlines():
        truth = json.loads(line)["answer"]
        [reference] = references(truth)
        assert quick_equal(extract(rf"\boxed{{{reference}}}"), truth) is True
        assert quick_equal(f"{reference}.00 dollars", truth) is True
        assert quick_equal("-987654", truth) is False
