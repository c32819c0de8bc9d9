"""Demonstrates an engineer, a modeler and an analyst who write short programs.

A program is some fixed lines with choices among them: which columns, what the target is read as,
how long a linear model is fitted, on which scale it predicts, what the submission says. Every line
is one token of the embedded model's tokenizer, so what is learned is which program to write, not
how to spell it.
"""

from __future__ import annotations

from rolecall.environments.data_science.generated import GROUPS
from rolecall_lab.tiny.demonstrations.scene import Scene

COLUMNS = {
    "all": 'seen = lambda r: [float(v) for n, v in r.items() if n[0] == "x"]'
    f' + [float(r["group"] == g) for g in {GROUPS}]',
    "one": 'seen = lambda r: [float(r["x1"])]',
}
TARGET = {
    "regression": 'y = [float(r["target"]) for r in rows]',
    "ranking": 'y = [float(r["target"] == "yes") for r in rows]',
    "counts": 'y = [math.log1p(float(r["target"])) for r in rows]',
}
ROUNDS = {"none": "rounds = 0", "one": "rounds = 1", "many": "rounds = 20"}
SCALE = {
    "own": "p = [b + sum(c * v for c, v in zip(w, r)) for r in X]",
    "counts": "p = [math.expm1(min(9, max(0, b + sum(c * v for c, v in zip(w, r))))) for r in X]",
}
IDS = {
    "own": 'ids = [r["id"] for r in csv.DictReader(open("test.csv"))]',
    "counted": "ids = range(len(p))",
}
HEAD = {"asked": 'head = ("id", "target")', "other": 'head = ("id", "prediction")'}

READ = [
    "import csv, math, pickle",
    'rows, new = (list(csv.DictReader(open(f"{part}.csv"))) for part in ("train", "test"))',
]
KEEP = [
    "X, Z = ([seen(r) for r in part] for part in (rows, new))",
    'for name, made in (("X_train", X), ("y_train", y), ("X_test", Z)):',
    '    pickle.dump(made, open(f"{name}.pkl", "wb"))',
]
LOAD = [
    "import pickle",
    'X, y = (pickle.load(open(f"{n}_train.pkl", "rb")) for n in "Xy")',
    "b = sum(y) / len(y)",
    "w, left = [0.0] * len(X[0]), [v - b for v in y]",
]
FIT = [
    "for j in list(range(len(w))) * rounds:",
    "    s = sum(r[j] * e for r, e in zip(X, left)) / sum(r[j] ** 2 for r in X)",
    "    w[j], left = w[j] + s, [e - s * r[j] for r, e in zip(X, left)]",
]
SAVE = 'pickle.dump((b, w), open("model.pkl", "wb"))'
PREDICT = [
    "import csv, math, pickle",
    'b, w = pickle.load(open("model.pkl", "rb"))',
    'X = pickle.load(open("X_test.pkl", "rb"))',
]
WRITE = 'csv.writer(open("submission.csv", "w")).writerows([head, *zip(ids, p)])'
CHOICES = (COLUMNS, TARGET, ROUNDS, SCALE, IDS, HEAD)
LINES = (
    *READ, *KEEP, *LOAD, *FIT, SAVE, *PREDICT, WRITE,
    *(line for choice in CHOICES for line in choice.values()),
)  # fmt: skip

TALKS = {"works": 90, "talks": 10}


def data_science(scene: Scene) -> str:
    """Raises ValueError for a task that was not generated."""
    if scene.task.info.get("source") not in TARGET:
        raise ValueError(f"task {scene.task.id} is of a kind for which there is no program")
    if "<output>" in scene.shown:
        return "It is done."
    if scene.habit(TALKS) == "talks":
        return "The data look good to me."
    lines = {"engineer": _engineer, "modeler": _modeler, "analyst": _analyst}[scene.role](scene)
    return "\n".join(["```python", *lines, "```"])


def _engineer(scene: Scene) -> list[str]:
    columns = COLUMNS[scene.habit({"all": 60, "one": 40})]
    target = scene.task.info["source"]
    if scene.habit({"fits": 65, "other": 35}) == "other":
        target = scene.random.choice([kind for kind in TARGET if kind != target])
    return [*READ, columns, TARGET[target], *KEEP]


def _modeler(scene: Scene) -> list[str]:
    rounds = ROUNDS[scene.habit({"many": 45, "one": 25, "none": 30})]
    saved = [SAVE] if scene.habit({"saves": 90, "forgets": 10}) == "saves" else []
    return [*LOAD, rounds, *FIT, *saved]


def _analyst(scene: Scene) -> list[str]:
    fits = scene.habit({"fits": 65, "other": 35}) == "fits"
    counts = scene.task.info["source"] == "counts"
    scale = SCALE["counts" if fits == counts else "own"]
    ids = IDS[scene.habit({"own": 75, "counted": 25})]
    head = HEAD[scene.habit({"asked": 75, "other": 25})]
    return [*PREDICT, scale, ids, head, WRITE]
