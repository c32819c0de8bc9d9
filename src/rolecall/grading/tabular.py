"""Scores predicted columns against true ones by a named metric, as Kaggle counts it.

Formulas that scikit-learn lacks, or has in another form, name their source. Columns hold text as a
CSV file does; each metric says how it reads them.
"""

from __future__ import annotations

import math
import re
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rolecall.core.optional import optional

Reads = Literal["number", "label", "text"]
Column = Sequence[str]
Numbers = NDArray[np.float64]
Compute = Callable[..., float]  # (truth [rows], predictions [rows]) -> score
WHOLE = re.compile(r"([+-]?\d+)\.0+")


class Invalid(ValueError):
    """Predictions that have no score. `kind` is what is counted, such as "missing_ids"."""

    def __init__(self, kind: str, told: str) -> None:
        super().__init__(told)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric: how one column of predictions is read and scored; several columns are averaged."""

    compute: Compute  # (truth [rows], predictions [rows])
    higher: bool  # is better
    truth: Reads
    given: Reads
    constant: Literal["mean", "median", "mode", "half"]  # the prediction that knows nothing


def evaluate(name: str, truth: Mapping[str, Column], given: Mapping[str, Column]) -> float:
    """Return the score of predictions whose rows stand in the order of the truth's.

    evaluate("accuracy", {"fruit": ["fig", "kiwi"]}, {"fruit": ["fig", "fig"]}) -> 0.5

    Several columns are averaged; log_loss takes them as the probabilities of classes. Raises
    Invalid for predictions without a score, ValueError for a truth without one.
    """
    metric = metric_named(name)
    columns = list(truth)
    try:
        true = [_read(truth[column], metric.truth, name=column) for column in columns]
    except Invalid as error:  # no prediction could do better
        raise ValueError(f"the truth of {name}: {error}") from error
    predictions = [_read(given[column], metric.given, name=column) for column in columns]
    with np.errstate(over="ignore", invalid="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn's: what they tell is an error below
        if name == "log_loss" and len(columns) > 1:
            score = _classes_log_loss(true, predictions)
        else:
            pairs = zip(true, predictions, strict=True)
            score = float(np.mean([metric.compute(*pair) for pair in pairs]))
    if math.isnan(score):
        raise Invalid("not_finite", f"{name} of these predictions is not a number")
    return score


def metric_named(name: str) -> Metric:
    """Return the metric of a name; raises ValueError that lists the names."""
    if name not in METRICS:
        raise ValueError(f"there is no metric {name!r}; there are: {', '.join(METRICS)}")
    return METRICS[name]


def normalise(score: float, *, baseline: float, best: float) -> float:
    """Return 0 at the baseline or worse, 1 at the best known score, more above it (DSBench,
    2409.07703).

    normalised(0.5, baseline=0.9, best=0.1) -> 0.5. Raises ValueError for equal ends.
    """
    if best == baseline:
        raise ValueError(f"the best known score is the baseline's: {best}")
    return max(0.0, (score - baseline) / (best - baseline))


def constant(name: str, column: Column) -> str:
    """Return the prediction for every row when only the training column is known."""
    kind = metric_named(name).constant
    if kind == "half":
        return "0.5"
    if kind == "mode":
        return max(sorted(Counter(column).items()), key=lambda entry: entry[1])[0]
    numbers = [float(value) for value in column]
    return repr(float(np.mean(numbers) if kind == "mean" else np.median(numbers)))


def canonical(text: str) -> str:
    """Return an id or a label as it is compared: 3.0, which tables make of whole numbers, is 3."""
    stripped = text.strip()
    whole = WHOLE.fullmatch(stripped)
    return whole[1] if whole else stripped


def _read(column: Column, reads: Reads, *, name: str) -> Any:
    if reads == "text":
        return list(column)
    if reads == "label":
        return [canonical(value) for value in column]
    try:
        numbers = np.array([float(value) for value in column])
    except ValueError as error:
        raise Invalid("not_a_number", f"column {name!r}: {error}") from error
    if not np.isfinite(numbers).all():
        raise Invalid("not_a_number", f"column {name!r} holds what is not a finite number")
    return numbers


def _sklearn() -> ModuleType:
    return optional("sklearn.metrics", extra="data")


def _from_sklearn(name: str, **options: Any) -> Compute:
    return lambda truth, given: float(getattr(_sklearn(), name)(truth, given, **options))


def _positive(truth: Sequence[str]) -> NDArray[np.bool_]:
    """Return which rows are of the second of two classes, in the order of numbers or letters."""
    classes = sorted(set(truth), key=label_order)
    if len(classes) != 2:
        raise ValueError(f"two classes are needed, the truth has {len(classes)}: {classes[:5]}")
    return np.array([value == classes[1] for value in truth])


def label_order(label: str) -> tuple[float, str]:
    """Return what labels are sorted by: numbers by their value, before all others."""
    try:
        return float(label), label
    except ValueError:
        return math.inf, label


def _roc_auc(truth: Sequence[str], given: Numbers) -> float:
    return float(_sklearn().roc_auc_score(_positive(truth), given))


def _log_loss(truth: Sequence[str], given: Numbers) -> float:
    positive = _positive(truth)
    return _classes_log_loss([~positive, positive], [1 - given, given])


def _classes_log_loss(truth: Sequence[Any], given: Sequence[Numbers]) -> float:
    """Rows of probabilities are scaled to a sum of 1, as Kaggle does."""
    chances = np.stack(given, axis=1)
    true = np.stack([np.asarray(column, dtype=float) for column in truth], axis=1)  # one is 1
    totals = chances.sum(axis=1, keepdims=True)
    if (chances < 0).any() or (chances > 1).any() or (totals == 0).any():
        raise Invalid("no_probability", "log_loss takes probabilities from 0 to 1")
    labels = range(len(given))
    return float(_sklearn().log_loss(true.argmax(axis=1), chances / totals, labels=labels))


def _f1(truth: Sequence[str], given: Sequence[str]) -> float:
    classes = sorted(set(truth), key=label_order)
    predicted = np.array([value == classes[-1] for value in given])
    return float(_sklearn().f1_score(_positive(truth), predicted, zero_division=0.0))


def _rmsle(truth: Numbers, given: Numbers) -> float:
    if (given <= -1).any():
        raise Invalid("no_logarithm", "rmsle takes predictions above -1")
    return float(_sklearn().root_mean_squared_error(np.log1p(truth), np.log1p(given)))


def _smape(truth: Numbers, given: Numbers) -> float:
    """Return the error in percent, from 0 to 200; where both are 0 there is no error (Kaggle)."""
    sums = np.abs(truth) + np.abs(given)
    errors = np.divide(2 * np.abs(truth - given), sums, out=np.zeros_like(sums), where=sums > 0)
    return float(100 * errors.mean())


def _quadratic_kappa(truth: Numbers, given: Numbers) -> float:
    """Return 1 - mean (t_i - g_i)^2 / mean over all i, j of (t_i - g_j)^2: Cohen's kappa with
    quadratic weights of the numbers themselves, where scikit-learn weighs places among the labels
    seen.
    """
    if (given != np.round(given)).any():
        raise Invalid("no_class", "quadratic_weighted_kappa takes whole numbers: classes")
    chance = truth.var() + given.var() + (truth.mean() - given.mean()) ** 2
    return 1.0 if chance == 0 else float(1 - np.mean((truth - given) ** 2) / chance)


def _map_at_3(truth: Sequence[str], given: Sequence[str]) -> float:
    """Return 1 over the place of the true label among the first three, which spaces separate
    (Kaggle).
    """
    scores = []
    for true, guess in zip(truth, given, strict=True):
        first = [canonical(label) for label in guess.split()[:3]]
        scores.append(1 / (1 + first.index(true)) if true in first else 0.0)
    return float(np.mean(scores))


def _normalized_gini(truth: Numbers, given: Numbers) -> float:
    """Return the predictions' Gini index over that of the truth; ties keep their order (Kaggle)."""
    if truth.std() == 0:
        raise ValueError("normalized_gini of a truth that is always the same")
    return _gini(truth, given) / _gini(truth, truth)


def _gini(truth: Numbers, given: Numbers) -> float:
    shares = truth[np.argsort(-given, kind="stable")].cumsum() / truth.sum()
    return float(shares.sum() - (len(truth) + 1) / 2) / len(truth)


def _jaccard(truth: Sequence[str], given: Sequence[str]) -> float:
    """Return common words over all words of two texts, in lower case (Kaggle)."""
    pairs = [
        ({*true.lower().split()}, {*guess.lower().split()})
        for true, guess in zip(truth, given, strict=True)
    ]
    return float(np.mean([len(a & b) / len(a | b) if a | b else 1.0 for a, b in pairs]))


def _pearson(truth: Numbers, given: Numbers) -> float:
    """Return the correlation; 0 for predictions that are always the same."""
    if truth.std() == 0:
        raise ValueError("a correlation with a truth that is always the same")
    return 0.0 if given.std() == 0 else float(np.corrcoef(truth, given)[0, 1])


def _spearman(truth: Numbers, given: Numbers) -> float:
    return _pearson(_ranks(truth), _ranks(given))


def _ranks(values: Numbers) -> Numbers:
    """Places in the order of size; equal values share the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = counts.cumsum()
    return np.asarray((ends - (counts - 1) / 2)[inverse])


def _numbers(compute: Compute, *, higher: bool = False) -> Metric:
    return Metric(compute, higher, "number", "number", "mean")


METRICS: dict[str, Metric] = {
    "roc_auc": Metric(_roc_auc, True, "label", "number", "half"),
    "log_loss": Metric(_log_loss, False, "label", "number", "half"),
    "accuracy": Metric(_from_sklearn("accuracy_score"), True, "label", "label", "mode"),
    "f1": Metric(_f1, True, "label", "label", "mode"),
    "f1_micro": Metric(_from_sklearn("f1_score", average="micro"), True, "label", "label", "mode"),
    "map_at_3": Metric(_map_at_3, True, "label", "text", "mode"),
    "jaccard": Metric(_jaccard, True, "text", "text", "mode"),
    "rmse": _numbers(_from_sklearn("root_mean_squared_error")),
    "mcrmse": _numbers(_from_sklearn("root_mean_squared_error")),
    "rmsle": _numbers(_rmsle),
    "mae": Metric(_from_sklearn("mean_absolute_error"), False, "number", "number", "median"),
    "medae": Metric(_from_sklearn("median_absolute_error"), False, "number", "number", "median"),
    "smape": Metric(_smape, False, "number", "number", "median"),
    "r2": _numbers(_from_sklearn("r2_score"), higher=True),
    "normalized_gini": Metric(_normalized_gini, True, "number", "number", "half"),
    "pearson": _numbers(_pearson, higher=True),
    "spearman": _numbers(_spearman, higher=True),
    "quadratic_weighted_kappa": Metric(_quadratic_kappa, True, "number", "number", "mode"),
    "qwk": Metric(_quadratic_kappa, True, "number", "number", "mode"),
}
