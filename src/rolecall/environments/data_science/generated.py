"""Generates tables to learn from, in the manner of Kaggle.

The best known score is that of the rule behind the data without its noise, the baseline that of
the best constant: so 0 is what everybody gets and 1 what nobody is expected to exceed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rolecall.core.interfaces.environment import ENDLESS
from rolecall.core.seeding import derive_seed
from rolecall.core.types import Task
from rolecall.data.sources import LazyTasks
from rolecall.grading.submissions import Grading, Table, write_table
from rolecall.grading.tabular import constant, evaluate, metric_named

Kind = Literal["regression", "classes", "ranking", "counts"]
Numbers = NDArray[np.float64]
Drawn = tuple[list[str], list[str]]  # the target of each row, and the best prediction of it

NUM_TRAIN, NUM_TEST = 160, 80
GROUPS = ("north", "south", "west")
LABELS = ("high", "low", "middle")
METRICS: dict[Kind, tuple[str, ...]] = {
    "regression": ("rmse", "mae", "r2"),
    "classes": ("accuracy", "f1_micro"),
    "ranking": ("roc_auc",),
    "counts": ("rmsle",),
}
SUBMISSION = "submission.csv"


class GeneratedTables(LazyTasks):
    """Table number i of a split: the same in every run, and no other split's."""

    def __init__(self, split: str, *, kinds: Sequence[Kind], size: int = ENDLESS) -> None:
        self.split, self.kinds, self.size = split, tuple(kinds), size

    def make(self, index: int) -> Task:
        random = np.random.default_rng(derive_seed("tables", self.split, index))
        kind = self.kinds[random.integers(len(self.kinds))]
        return _task(random, kind, name=f"{kind}-{self.split}-{index}")


def describe_submission(grading: Grading) -> str:
    """Return the end of a prompt, which states what is to be handed in."""
    better = "higher" if metric_named(grading.metric).higher else "lower"
    columns = ", ".join([grading.id_column, *grading.targets])
    return (
        f"Files: train.csv, test.csv. Write {SUBMISSION} with the columns {columns} and one row"
        f" for each {grading.id_column} of test.csv. Metric: {grading.metric} ({better} is better)."
    )


def _task(random: np.random.Generator, kind: Kind, *, name: str) -> Task:
    metric = str(random.choice(METRICS[kind]))
    grading = Grading(metric, ["target"], "id")
    rows = NUM_TRAIN + NUM_TEST
    while True:
        features, signal = _features(random, rows)
        target, best = _MAKERS[kind](random, signal)
        truth = {"target": target[NUM_TRAIN:]}
        informed = {"target": best[NUM_TRAIN:]}
        nothing = {"target": [constant(metric, target[:NUM_TRAIN])] * NUM_TEST}
        if len(set(truth["target"])) == 1:
            continue
        scores = [evaluate(metric, truth, submission) for submission in (nothing, informed)]
        gain = scores[1] - scores[0] if metric_named(metric).higher else scores[0] - scores[1]
        if gain > 0.1:
            break
    ids = [str(number) for number in random.permutation(10 * rows)[:rows]]
    table: Table = {"id": ids} | features | {"target": target}
    train = {column: cells[:NUM_TRAIN] for column, cells in table.items()}
    test = {column: cells[NUM_TRAIN:] for column, cells in table.items() if column != "target"}
    prompt = f"Table {name}: predict the column target. {_meaning(kind)}\n\n"
    prompt += describe_submission(grading)
    info = {
        "source": kind,
        "files": {"train.csv": write_table(train).decode(), "test.csv": write_table(test).decode()},
        "grading": asdict(grading),
        "baseline": scores[0],
        "best": scores[1],
    }
    return Task(name, prompt, write_table({"id": ids[NUM_TRAIN:]} | truth).decode(), info)


def _features(random: np.random.Generator, rows: int) -> tuple[Table, Numbers]:
    """Return numbers and a group, and their weighted sum with mean 0 and deviation 1: [rows]."""
    numbers = random.normal(size=(rows, int(random.integers(3, 6))))
    groups = random.integers(len(GROUPS), size=rows)
    signal = numbers @ random.normal(size=numbers.shape[1]) + random.normal(size=3)[groups]
    features = {f"x{at}": [f"{v:.4f}" for v in column] for at, column in enumerate(numbers.T, 1)}
    features["group"] = [GROUPS[group] for group in groups]
    return features, (signal - signal.mean()) / signal.std()


def _regression(random: np.random.Generator, signal: Numbers) -> Drawn:
    level, scale = random.uniform(-50, 50), random.uniform(2, 20)
    rule = level + scale * signal
    noisy = rule + 0.3 * scale * random.normal(size=len(rule))
    return [f"{value:.4f}" for value in noisy], [f"{value:.4f}" for value in rule]


def _classes(random: np.random.Generator, signal: Numbers) -> Drawn:
    """Three classes along the weighted sum, with blurred borders."""
    order = random.permutation(LABELS)

    def labels(values: Numbers) -> list[str]:
        return [str(order[index]) for index in np.digitize(values, [-0.5, 0.5])]

    return labels(signal + 0.2 * random.normal(size=len(signal))), labels(signal)


def _ranking(random: np.random.Generator, signal: Numbers) -> Drawn:
    """Draw from a logistic model of two classes; the best prediction is its chance of "yes"."""
    chances = 1 / (1 + np.exp(-3 * signal))
    yes = random.uniform(size=len(chances)) < chances
    return ["yes" if value else "no" for value in yes], [f"{chance:.6f}" for chance in chances]


def _counts(random: np.random.Generator, signal: Numbers) -> Drawn:
    """Poisson counts; the best prediction is their rate."""
    rates = np.exp(random.uniform(1.5, 2.5) + 0.8 * signal)
    return [str(count) for count in random.poisson(rates)], [f"{rate:.4f}" for rate in rates]


def _meaning(kind: Kind) -> str:
    meanings = {
        "regression": "It is a number.",
        "classes": f"It is one of {', '.join(LABELS)}.",
        "ranking": "It is yes or no; submit a number for each row that is larger for likely yes.",
        "counts": "It is a count: a whole number from 0 up.",
    }
    return meanings[kind]


_MAKERS = {
    "regression": _regression,
    "classes": _classes,
    "ranking": _ranking,
    "counts": _counts,
}
