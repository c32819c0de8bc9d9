"""Every metric by numbers that were worked out by hand; submissions without a score say why."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from sklearn.metrics import cohen_kappa_score

from rolecall.grading.submissions import Grading, grade, read_table, write_table
from rolecall.grading.tabular import METRICS, Invalid, constant, evaluate, metric_named, normalise


def words(line: str) -> list[str]:
    return line.split()


@pytest.mark.parametrize(
    ("name", "truth", "given", "score"),
    [
        ("roc_auc", "0 0 1 1", "0.1 0.4 0.35 0.8", 0.75),
        ("roc_auc", "no no yes yes", "-10 40 35 800", 0.75),
        ("roc_auc", "False True", "1 1", 0.5),
        ("roc_auc", "2 10", "0 1", 1.0),  # 10 is the larger class, though not the later text
        ("log_loss", "0 1", "0.5 0.5", math.log(2)),
        ("log_loss", "0 1", "0.2 0.9", -(math.log(0.8) + math.log(0.9)) / 2),
        ("accuracy", "fig kiwi fig", "fig fig fig", 2 / 3),
        ("accuracy", "1 0", "1.0 0.0", 1.0),
        ("accuracy", "1 0", "0.9 0.1", 0.0),  # labels are not rounded
        ("f1", "0 0 1 1", "0 1 1 1", 0.8),
        ("f1", "0 1", "0 0", 0.0),
        ("f1_micro", "a b c c", "a b c a", 0.75),
        ("rmse", "1 2", "1 4", math.sqrt(2)),
        ("mcrmse", "1 2", "1 4", math.sqrt(2)),
        ("rmsle", "0 1", "0 3", math.log(2) / math.sqrt(2)),
        ("mae", "1 2 3", "2 2 5", 1.0),
        ("medae", "1 2 3", "2 2 13", 1.0),
        ("smape", "0 1 100", "0 3 100", 100 / 3),
        ("r2", "1 2 3", "1 2 4", 0.5),
        ("r2", "1 2 3", "2 2 2", 0.0),
        ("normalized_gini", "0 0 1 1", "0.1 0.4 0.35 0.8", 0.5),
        ("normalized_gini", "1 2 4", "4 2 1", -1.0),
        ("pearson", "1 2 3", "2 4 6", 1.0),
        ("pearson", "1 2 3", "5 5 5", 0.0),
        ("pearson", "0 1 2", "0 2 1", 0.5),
        ("spearman", "1 2 3", "1 10 100", 1.0),
        ("spearman", "1 2 2 3", "4 3 3 1", -1.0),
        ("quadratic_weighted_kappa", "1 2 3", "1 2 3", 1.0),
        ("quadratic_weighted_kappa", "1 2 3", "3 2 1", -1.0),
        ("qwk", "0 1", "0 0", 0.0),
        ("qwk", "1 1", "1 1", 1.0),
    ],
)
def test_the_score_worked_out_by_hand(name, truth, given, score):
    found = evaluate(name, {"y": words(truth)}, {"y": words(given)})
    assert found == pytest.approx(score, abs=1e-9)


def test_metrics_of_texts():
    first = {"y": ["a", "b", "c", "d"]}
    assert evaluate("map_at_3", first, {"y": ["a b c", "a b", "x y c", "a b c d"]}) == (
        pytest.approx((1 + 1 / 2 + 1 / 3 + 0) / 4)
    )
    assert evaluate("map_at_3", {"y": ["7"]}, {"y": ["1.0 7.0"]}) == 0.5
    said = {"y": ["the sad day", "Good"]}
    assert evaluate("jaccard", {"y": ["sad day", "good"]}, said) == pytest.approx(5 / 6)


def test_several_columns_are_averaged_and_log_loss_takes_them_as_classes():
    truth = {"a": ["1", "2"], "b": ["0", "0"]}
    given = {"b": ["0", "0"], "a": ["1", "4"]}
    assert evaluate("mcrmse", truth, given) == pytest.approx(math.sqrt(2) / 2)
    classes = {"x": ["1", "0"], "y": ["0", "0"], "z": ["0", "1"]}
    chances = {"x": ["0.2", "0.1"], "y": ["0.1", "0.1"], "z": ["0.1", "0.8"]}
    expected = -(math.log(0.5) + math.log(0.8)) / 2
    assert evaluate("log_loss", classes, chances) == pytest.approx(expected), "rows are scaled"


def test_quadratic_kappa_is_cohens_where_all_classes_occur():
    random = np.random.default_rng(0)
    truth, given = random.integers(0, 5, 200), random.integers(0, 5, 200)
    ours = evaluate("qwk", {"y": [*map(str, truth)]}, {"y": [*map(str, given)]})
    assert ours == pytest.approx(cohen_kappa_score(truth, given, weights="quadratic"))


def test_every_metric_of_the_task_records_is_known(shared):
    path = shared / "data/dsbench_modeling_cleaned_prompts.json"
    named = {record["metric"] for record in json.loads(path.read_text()).values()}
    assert named == METRICS.keys()
    with pytest.raises(ValueError, match="there is no metric 'best'"):
        metric_named("best")


@pytest.mark.parametrize("name", ["rmse", "mae", "r2", "roc_auc", "accuracy", "pearson"])
def test_a_metrics_direction_is_that_of_better_predictions(name):
    truth = {"y": words("0 1 0 1")}
    better, worse = ({"y": words(text)} for text in ("0 1 0 1", "1 0 1 1"))
    gain = evaluate(name, truth, better) - evaluate(name, truth, worse)
    assert (gain > 0) == METRICS[name].higher


@pytest.mark.parametrize(
    ("name", "given", "kind"),
    [
        ("rmse", "1 x", "not_a_number"),
        ("rmse", "1 nan", "not_a_number"),
        ("rmse", "1 inf", "not_a_number"),
        ("rmsle", "1 -1", "no_logarithm"),
        ("qwk", "1 0.5", "no_class"),
        ("log_loss", "1 2", "no_probability"),
        ("r2", "1e308 -1e308", None),
    ],
)
def test_predictions_without_a_score_say_why(name, given, kind):
    truth = {"y": words("0 1")}
    if kind is None:
        assert evaluate(name, truth, {"y": words(given)}) == -math.inf
        return
    with pytest.raises(Invalid) as raised:
        evaluate(name, truth, {"y": words(given)})
    assert raised.value.kind == kind


def test_a_truth_without_a_score_is_no_fault_of_the_predictions():
    for name, truth in (("roc_auc", "0 0"), ("pearson", "0 0"), ("rmse", "0 x"), ("f1", "a a")):
        with pytest.raises(ValueError, match=r"truth|same|two classes") as raised:
            evaluate(name, {"y": words(truth)}, {"y": words("0 1")})
        assert not isinstance(raised.value, Invalid)


@pytest.mark.parametrize(
    ("score", "expected"), [(0.9, 0.0), (1.5, 0.0), (0.5, 0.5), (0.1, 1.0), (0.0, 1.125)]
)
def test_scores_are_normalised_between_baseline_and_best(score, expected):
    assert normalise(score, baseline=0.9, best=0.1) == pytest.approx(expected)
    assert normalise(-score, baseline=-0.9, best=-0.1) == pytest.approx(expected)


def test_equal_ends_are_an_error():
    with pytest.raises(ValueError, match="baseline"):
        normalise(1.0, baseline=0.5, best=0.5)


def test_the_constant_prediction_is_the_one_that_knows_nothing():
    assert float(constant("rmse", words("1 2 6"))) == 3.0
    assert float(constant("mae", words("1 2 6"))) == 2.0
    assert constant("accuracy", words("b a a b")) == "a"
    assert constant("roc_auc", words("0 1 1")) == "0.5"


# --- submissions ---

TRUTH = {"id": ["1", "2", "3"], "y": ["a", "b", "c"]}
GRADING = Grading("accuracy", ["y"], "id")


def test_predictions_are_joined_by_their_ids_and_not_by_their_order():
    assert grade(b"y,id\nc,3\na,1.0\nb,2\n", TRUTH, GRADING) == 1.0
    assert grade(b"\xef\xbb\xbfid, y\r\n3,c\r\n\r\n1,a\r\n2,x\r\n", TRUTH, GRADING) == (
        pytest.approx(2 / 3)
    )


@pytest.mark.parametrize(
    ("submission", "kind"),
    [
        (None, "missing"),
        (b"", "unreadable"),
        (b"\x80\x04pickle", "unreadable"),
        (b"id,y\n1,a\n2\n3,c\n", "unreadable"),
        (b'id,y\n"' + b"x" * 200_000, "unreadable"),
        (b"id,z\n1,a\n2,b\n3,c\n", "columns"),
        (b",id,y\n0,1,a\n1,2,b\n2,3,c\n", "columns"),
        (b"id,y,y\n1,a,a\n", "columns"),
        (b"id,y\n1,a\n2,b\n2,c\n", "duplicate_ids"),
        (b"id,y\n1,a\n2,b\n2.0,b\n3,c\n", "duplicate_ids"),
        (b"id,y\n1,a\n2,b\n", "missing_ids"),
        (b"id,y\n1,a\n2,b\n4,c\n", "missing_ids"),
        (b"id,y\n1,a\n2,b\n3,c\n4,d\n", "extra_ids"),
        (b"id,y\n1,a\n2,\n3,c\n", "empty"),
        (b"x" * ((64 << 20) + 1), "too_large"),
    ],
)
def test_an_invalid_submission_is_of_a_kind(submission, kind):
    with pytest.raises(Invalid) as raised:
        grade(submission, TRUTH, GRADING)
    assert raised.value.kind == kind


def test_a_table_is_read_as_it_was_written():
    table = {"id": ["1", "2"], "text": ["a, b", 'say "x"\nno'], "empty": ["", " "]}
    assert read_table(write_table(table)) == table
