"""EM, sub-EM and F1 on a table of answers."""

from __future__ import annotations

import pytest

from rolecall.grading.qa import exact_match, f1, normalise, sub_match, targets


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The  Beatles' (first) album.", "beatles first album"),
        ("A an the", ""),
        ("Theatre", "theatre"),
        ("U.S.A.", "usa"),
        ("co-operate", "cooperate"),
        ("1,000", "1000"),
        ("another day", "another day"),
        (" Zo\u00eb \u2013 \u00c6r\u00f8 ", "zo\u00eb \u2013 \u00e6r\u00f8"),
        ("a\tb\nc", "b c"),
        ("", ""),
    ],
)
def test_case_punctuation_articles_and_spaces_are_taken_away(text, normal):
    assert normalise(text) == normal


@pytest.mark.parametrize(
    ("given", "accepted", "em", "sub", "best"),
    [
        ("Jane Austen", ["Jane Austen"], True, True, 1.0),
        ("jane austen.", ["Jane Austen"], True, True, 1.0),
        ("The Jane Austen", ["Jane Austen"], True, True, 1.0),
        ("Austen", ["Jane Austen", "Austen"], True, True, 1.0),
        ("Austen", ["Jane Austen"], False, False, 2 / 3),
        ("it was Jane Austen", ["Jane Austen"], False, True, 2 / 3),
        ("Jane", ["John"], False, False, 0.0),
        ("Jane Jane", ["Jane Austen"], False, False, 0.5),
        ("yes", ["yes"], True, True, 1.0),
        ("yes it is", ["yes"], False, True, 0.0),
        ("no", ["yes"], False, False, 0.0),
        ("no", ["no way"], False, False, 0.0),
        ("not", ["no"], False, True, 0.0),
        ("noanswer", ["no answer"], False, False, 0.0),
        ("", ["Jane"], False, False, 0.0),
        ("A", ["A"], True, True, 1.0),
        ("the", ["A"], False, False, 0.0),
        ("Paris, London", ["Berlin", "paris"], False, True, 2 / 3),
        ("1000", ["1,000"], True, True, 1.0),
    ],
)
def test_measures_take_the_best_accepted_answer(given, accepted, em, sub, best):
    assert exact_match(given, accepted) is em
    assert sub_match(given, accepted) is sub
    assert f1(given, accepted) == pytest.approx(best)


@pytest.mark.parametrize(
    ("truth", "accepted"),
    [
        ("Emma", ["Emma"]),
        (["Emma", " Emma (novel) "], ["Emma", "Emma (novel)"]),
        ({"target": ["Emma"]}, ["Emma"]),
        ({"target": "Emma"}, ["Emma"]),
        (1815, ["1815"]),
        (("a", 2.5), ["a", "2.5"]),
    ],
)
def test_a_truth_yields_every_accepted_answer(truth, accepted):
    assert targets(truth) == accepted


def test_arrays_of_a_parquet_file_are_lists_of_answers():
    numpy = pytest.importorskip("numpy")
    assert targets({"target": numpy.array(["a", "b"], dtype=object)}) == ["a", "b"]


@pytest.mark.parametrize("truth", [None, "", "  ", [], ["a", ""], {"target": []}, {"x": "y"}, {}])
def test_a_truth_without_an_answer_is_an_error(truth):
    with pytest.raises(ValueError, match="truth"):
        targets(truth)
