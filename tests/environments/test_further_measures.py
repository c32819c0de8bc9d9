"""What a submission is measured by beside its task's own metric."""

from __future__ import annotations

import pytest

from rolecall.grading.further_measures import further_measures
from rolecall.grading.submissions import Grading, align, write_table
from rolecall.grading.tabular import Invalid

IDS = ["1", "2", "3", "4", "5"]


def measure(metric, true, predicted):
    truth = {"id": IDS[: len(true)], "y": true}
    submission = write_table({"id": IDS[: len(true)], "y": predicted})
    grading = Grading(metric, ["y"], "id")
    return further_measures(align(submission, truth, grading), truth, grading)


def test_errors_of_numbers_stand_in_proportion_to_the_truth():
    """Each is one too high: the range of the truth is 4, the distance of its quartiles 2."""
    assert measure("rmsle", ["1", "2", "3", "4", "5"], ["2", "3", "4", "5", "6"]) == {
        "rmse": 1.0, "mae": 1.0, "rmse_percent_of_range": 25.0, "rmse_percent_of_iqr": 50.0,
    }  # fmt: skip


def test_a_truth_that_is_always_the_same_has_no_range():
    assert measure("mae", ["2", "2"], ["3", "3"]) == {"rmse": 1.0, "mae": 1.0}


def test_chances_are_classes_above_a_half():
    """3 of 4 are right; of the second class 1 of 1 predicted and 1 of 2 true: f1 is 2/3."""
    measures = measure("roc_auc", ["9", "10", "10", "9"], ["0.1", "0.9", "0.5", "0.2"])
    assert measures == pytest.approx({"accuracy": 0.75, "f1": 2 / 3, "f1_micro": 0.75})


def test_three_classes_have_no_f1_of_one():
    measures = measure("accuracy", ["a", "b", "c"], ["a", "b", "b"])
    assert measures == pytest.approx({"accuracy": 2 / 3, "f1_micro": 2 / 3})


def test_texts_have_none_and_a_missing_submission_is_refused():
    assert measure("jaccard", ["a b", "c"], ["a", "c"]) == {}
    with pytest.raises(Invalid):
        align(None, {"id": ["1"], "y": ["2"]}, Grading("mae", ["y"], "id"))


def test_an_error_too_large_for_a_number_is_left_out():
    assert measure("mae", ["1", "2"], ["1e200", "2"]) == {"mae": 5e199}
