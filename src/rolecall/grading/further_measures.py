"""Measures predictions beyond their task's own metric, so that a reader sees how wrong they are."""

from __future__ import annotations

import math

import numpy as np

from rolecall.grading.submissions import Grading, Table
from rolecall.grading.tabular import Invalid, canonical, evaluate, label_order, metric_named

HALF = 0.5  # a probability above it stands for the second class


def further_measures(predictions: Table, truth: Table, grading: Grading) -> dict[str, float]:
    """Return accuracy and f1 of classes, or rmse, mae and relative errors of numbers.

    `predictions`: columns whose rows stand in the order of the truth's, as `align` returns them.

    rmse_percent_of_range and rmse_percent_of_iqr divide the rmse by the range of the true numbers,
    and by the distance of their quartiles. Several columns, texts and what cannot be measured have
    none. Truth [1, 2, 3, 4, 5] and predictions one too high -> {"rmse": 1.0, "mae": 1.0,
    "rmse_percent_of_range": 25.0, "rmse_percent_of_iqr": 50.0}.
    """
    if len(grading.targets) > 1:
        return {}
    [name] = grading.targets
    metric = metric_named(grading.metric)
    true, predicted = truth[name], predictions[name]
    if metric.truth == "number":
        measures = _numbers(true, predicted)
        return {name: value for name, value in measures.items() if math.isfinite(value)}
    if metric.truth == "label" and metric.given != "text":
        return _classes(true, predicted, as_chances=metric.given == "number")
    return {}


def _numbers(true: list[str], predicted: list[str]) -> dict[str, float]:
    measures = {name: evaluate(name, {"": true}, {"": predicted}) for name in ("rmse", "mae")}
    low, first, third, high = np.percentile(np.array(true, dtype=float), [0, 25, 75, 100])
    for name, width in (("range", high - low), ("iqr", third - first)):
        if width > 0:
            measures[f"rmse_percent_of_{name}"] = 100 * measures["rmse"] / float(width)
    return measures


def _classes(true: list[str], predicted: list[str], *, as_chances: bool) -> dict[str, float]:
    if as_chances:
        classes = sorted({canonical(label) for label in true}, key=label_order)
        if len(classes) != 2:
            return {}
        predicted = [classes[float(chance) > HALF] for chance in predicted]
    measures = {}
    for name in ("accuracy", "f1", "f1_micro"):
        try:
            measures[name] = evaluate(name, {"": true}, {"": predicted})
        except (Invalid, ValueError):  # f1 needs two classes
            continue
    return measures
