"""Three roles hand files on: features, a model, a submission."""

from __future__ import annotations

import asyncio

import pytest

from rolecall.environments.data_science.environment import DataScienceWorld
from rolecall.environments.data_science.generated import GeneratedTables
from rolecall.sandbox.base import Limits
from rolecall.tools.use import ToolUse, WorldTools
from rolecall.workflows.data_science import data_science
from tests.sandbox.places import working_sandbox
from tests.workflows.teams import play_team, shown, turns_of

pytestmark = pytest.mark.slow

TASK = GeneratedTables("train", kinds=["regression"])[0]
FEATURES = """
import csv, pickle, numpy
def features(name):
    rows = list(csv.DictReader(open(name)))
    groups = sorted({row["group"] for row in rows})
    return numpy.array([
        [float(row[k]) for k in row if k[0] == "x"] + [row["group"] == g for g in groups]
        for row in rows
    ], dtype=float)
target = numpy.array([float(row["target"]) for row in csv.DictReader(open("train.csv"))])
parts = {"X_train": features("train.csv"), "X_test": features("test.csv"), "y_train": target}
for name, part in parts.items():
    pickle.dump(part, open(f"{name}.pkl", "wb"))
print(parts["X_train"].shape)
"""
MODEL = """
import pickle, numpy
X, y = (pickle.load(open(f"{name}_train.pkl", "rb")) for name in "Xy")
pickle.dump(numpy.linalg.lstsq(X, y, rcond=None)[0], open("model.pkl", "wb"))
"""
SUBMIT = """
import csv, pickle
predictions = pickle.load(open("X_test.pkl", "rb")) @ pickle.load(open("model.pkl", "rb"))
ids = [row["id"] for row in csv.DictReader(open("test.csv"))]
with open("submission.csv", "w") as out:
    print("id,target", file=out)
    for row in zip(ids, predictions):
        print(*row, sep=",", file=out)
"""


@pytest.fixture(scope="module")
def world():
    sandbox = working_sandbox(concurrency=2)
    yield lambda: DataScienceWorld(TASK, sandbox.run, limits=Limits(wall_s=30))
    asyncio.run(sandbox.close())


def fence(code: str) -> str:
    return f"```python\n{code}\n```"


def play(folder, world, says, **options):
    use = ToolUse((WorldTools(),), format="code", max_calls=3)
    agents = {name: {"tools": use} for name in says}
    return play_team(folder, data_science, says, options=options, world=world, agents=agents)


def test_files_pass_from_role_to_role_and_the_submission_is_scored(model_folder, world):
    says = {
        "engineer": [fence(FEATURES), "I made the features."],
        "modeler": [fence(MODEL), "I fitted."],
        "analyst": [fence(SUBMIT), "I submitted."],
    }
    episode = play(model_folder, world, says)
    engineer, modeler, analyst = (turns_of(episode, name)[0] for name in says)
    assert "Files: test.csv, train.csv" in shown(engineer)
    assert "X_train.pkl" in shown(modeler)
    assert "I made the features." in shown(modeler)
    assert "I fitted." in shown(analyst)
    assert "model.pkl" in shown(analyst)
    assert episode.answer == "I submitted."
    assert episode.metrics["count/completed"] == 1.0
    assert episode.scores["team"] > 0.9


def test_a_role_that_leaves_nothing_is_recorded_and_the_others_see_what_there_is(
    model_folder, world
):
    says = {"engineer": ["Nothing."], "modeler": [fence("1 / 0"), "It failed."], "analyst": ["No."]}
    episode = play(model_folder, world, says)
    assert "Files: test.csv, train.csv\nMissing: X_train.pkl" in shown(
        turns_of(episode, "modeler")[0]
    )
    assert "ZeroDivisionError" in turns_of(episode, "modeler")[1].observation
    counts = {name for name in episode.metrics if "missing" in name}
    assert counts == {
        f"count/{name}"
        for name in ("missing_engineer", "missing_modeler", "missing_analyst", "submission_missing")
    }
    assert episode.scores["team"] == 0.0


def test_with_more_tries_a_role_is_told_what_it_lacks(model_folder, world):
    says = {
        "engineer": ["Nothing.", fence(FEATURES), "Here."],
        "modeler": ["m", "m"],
        "analyst": ["a", "a"],
    }
    episode = play(model_folder, world, says, tries=2)
    first, second, _ = turns_of(episode, "engineer")
    assert "Missing" not in shown(first)
    assert "Missing: X_train.pkl, y_train.pkl, X_test.pkl" in shown(second)
    assert "count/missing_engineer" not in episode.metrics
    assert len(turns_of(episode, "modeler")) == 2
