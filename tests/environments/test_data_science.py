"""Tables, the files of an episode, and what of them counts as a submission at its end."""

from __future__ import annotations

import asyncio
import json
import re

import numpy as np
import pytest

from rolecall.core.types import Episode, Task
from rolecall.environments.data_science.environment import (
    DataScienceEnvironment,
    DataScienceWorld,
    stale,
)
from rolecall.environments.data_science.generated import SUBMISSION, GeneratedTables
from rolecall.environments.data_science.rows import modelling_tasks, read_grading
from rolecall.grading.submissions import read_table, write_table
from rolecall.grading.tabular import metric_named
from rolecall.sandbox.base import Limits
from rolecall.storage.episode_io import from_json, to_json
from tests.sandbox.places import working_sandbox

pytestmark = pytest.mark.slow

KINDS = ("regression", "classes", "ranking", "counts")


@pytest.fixture(scope="module")
def sandbox():
    shared = working_sandbox(concurrency=2)
    yield shared
    asyncio.run(shared.close())


def table(kind="regression", split="train") -> Task:
    return GeneratedTables(split, kinds=[kind])[0]


async def nothing_runs(run):
    raise AssertionError("nothing of this test is run")


def scored(task: Task, submission: bytes | None) -> tuple[float, dict[str, float]]:
    """The score of a submission, and the episode's metrics."""
    world = DataScienceWorld(task, nothing_runs, limits=Limits())
    if submission is not None:
        world.files[SUBMISSION] = submission
    episode = Episode("e", task, 0, 0)
    return asyncio.run(world.score(episode))["team"], episode.metrics


def calls(sandbox, task: Task, *codes: str) -> tuple[DataScienceWorld, list[str]]:
    """Each code is a call of the world's tool; what they said."""
    world = DataScienceWorld(task, sandbox.run, limits=Limits(wall_s=30))

    async def main():
        [python] = world.tools()
        return [await python.call(code=code) for code in codes]

    return world, asyncio.run(main())


# --- generated tables ---


@pytest.mark.parametrize("kind", KINDS)
def test_the_truth_scores_1_and_a_constant_0(kind):
    task = table(kind)
    truth = task.answer.encode()
    score, metrics = scored(task, truth.replace(b"yes", b"1").replace(b"no", b"0"))
    assert score == 1.0
    assert metrics["normalised_score"] >= 1.0
    assert metrics["count/completed"] == 1.0
    cells = {"regression": "0", "classes": "high", "ranking": "0.3", "counts": "0"}
    known = read_table(truth)
    worst = write_table(known | {"target": [cells[kind]] * len(known["id"])})
    score, metrics = scored(task, worst)
    assert score <= 0.05, "one constant is no better than another"
    assert metrics["count/completed"] == 1.0


@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_names_all_that_is_asked_for_and_the_files_hold_no_truth(kind):
    task = table(kind)
    grading, files = read_grading(task), task.info["files"]
    better = "higher" if metric_named(grading.metric).higher else "lower"
    for word in ("train.csv", "test.csv", SUBMISSION, "id, target", grading.metric, better):
        assert word in task.prompt
    train, test, truth = (
        read_table(part.encode()) for part in (*files.values(), task.answer)
    )  # fmt: skip
    assert [*train] == [*test, "target"]
    assert test["id"] == truth["id"]
    assert not {*train["id"]} & {*test["id"]}
    assert task.answer not in task.prompt


def test_tables_are_the_same_again_and_each_is_another():
    first, second = GeneratedTables("train", kinds=KINDS)[:2]
    assert first == GeneratedTables("train", kinds=KINDS)[0]
    other = GeneratedTables("test", kinds=KINDS)[0]
    assert len({task.answer for task in (first, second, other)}) == 3
    assert {t.info["source"] for t in GeneratedTables("train", kinds=KINDS)[:20]} == {*KINDS}


def test_a_task_comes_back_from_the_journal_as_it_was():
    task = table()
    assert from_json(to_json(Episode("e", task, 0, 0))).task == task


# --- submissions ---


@pytest.mark.parametrize(
    ("submission", "count"),
    [
        (None, "submission_missing"),
        (b"\x80\x04\x95pickle", "submission_unreadable"),
        (b"id,target\n1,2\n", "submission_missing_ids"),
        (b"id,y\n1,2\n", "submission_columns"),
    ],
)
def test_an_invalid_submission_scores_0_and_is_counted(submission, count):
    score, metrics = scored(table(), submission)
    assert (score, metrics) == (0.0, {f"count/{count}": 1.0})


def test_a_submission_is_read_beside_the_event_loop():
    """Other episodes go on meanwhile: the loop has come round before the score is there."""
    task, passed = table(), []
    world = DataScienceWorld(task, nothing_runs, limits=Limits())
    world.files[SUBMISSION] = b"no,table\n"

    async def main() -> bool:
        asyncio.get_running_loop().call_soon(passed.append, "the loop has turned")
        await world.score(Episode("e", task, 0, 0))
        return bool(passed)

    assert asyncio.run(main())


def test_files_stay_from_call_to_call_and_inputs_as_they_are(sandbox):
    world, [_, said, failed] = calls(
        sandbox, table(),
        "open('X_train.pkl', 'w').write('x'); open('train.csv', 'w').write('gone')",
        "import os; print(sorted(os.listdir())); print(open('train.csv').read()[:3])",
        "open('model.pkl', 'w').write('m'); raise SystemExit('no')",
    )  # fmt: skip
    assert "'X_train.pkl'" in said
    assert said.endswith("id,")
    assert "[exit status 1]" in failed
    assert {*world.files} == {"train.csv", "test.csv", "X_train.pkl", "model.pkl"}


def test_a_call_that_is_stopped_leaves_nothing_but_what_was_there(sandbox):
    task = table()
    world = DataScienceWorld(task, sandbox.run, limits=Limits(wall_s=1))
    code = "open('model.pkl', 'w').write('half'); import time; time.sleep(60)"
    said = asyncio.run(world.tools()[0].call(code=code))
    assert "[stopped after 1 s]" in said
    assert {*world.files} == {"train.csv", "test.csv"}


def test_a_role_is_told_which_of_its_files_are_missing_and_it_is_counted(sandbox):
    world, _ = calls(sandbox, table(), "open('X_train.pkl', 'w'); open('model.pkl', 'w')")

    async def main():
        return [await world.step(role, "") for role in ("engineer", "modeler", "someone")]

    engineer, modeler, someone = asyncio.run(main())
    listing = "Files: X_train.pkl, model.pkl, test.csv, train.csv"
    assert engineer.text == f"{listing}\nMissing: y_train.pkl, X_test.pkl"
    assert (modeler.text, someone.text) == (listing, listing)
    assert [seen.done for seen in (engineer, modeler, someone)] == [False, True, True]
    episode = Episode("e", world.task, 0, 0)
    asyncio.run(world.score(episode))
    assert episode.metrics == {"count/missing_engineer": 1.0, "count/submission_missing": 1.0}


WRITES = f"open('{SUBMISSION}', 'w').write('old')"


@pytest.mark.parametrize(
    ("then", "stays"),
    [
        (f"print(open('{SUBMISSION}').read())", True),
        ("open('model.pkl', 'w').write('new')", False),
        ("raise ValueError", False),
        (f"{WRITES}; open('{SUBMISSION}', 'a').write('er'); open('model.pkl', 'w')", True),
    ],
)
def test_a_submission_of_an_earlier_call_does_not_outlive_what_it_was_made_of(sandbox, then, stays):
    world, said = calls(sandbox, table(), WRITES, then)
    assert (SUBMISSION in world.files) == stays
    assert ("older than what it was made of" in said[1]) == (not stays)


def test_a_submission_is_stale_if_it_stays_while_others_change():
    old = {SUBMISSION: b"1", "model.pkl": b"1"}
    assert not stale(old, old, failed=False)
    assert stale(old, old, failed=True)
    assert stale(old, old | {"model.pkl": b"2"}, failed=False)
    assert not stale(old, old | {SUBMISSION: b"2", "model.pkl": b"2"}, failed=False)
    assert not stale({}, old, failed=True)
    assert not stale(old, {}, failed=False)


def test_pickles_of_a_team_are_never_opened_here(sandbox):
    bomb = (
        "import pickle\nclass Bomb:\n    def __reduce__(self): return (exit, (3,))\n"
        f"for name in ('model.pkl', '{SUBMISSION}'): pickle.dump(Bomb(), open(name, 'wb'))"
    )
    world, _ = calls(sandbox, table(), bomb)
    episode = Episode("e", world.task, 0, 0)
    assert asyncio.run(world.score(episode)) == {"team": 0.0}
    assert episode.metrics == {"count/submission_unreadable": 1.0}


def test_a_fork_goes_its_own_way(sandbox):
    world, _ = calls(sandbox, table(), WRITES)

    async def main():
        fork = await world.fork()
        await fork.tools()[0].call(code="open('model.pkl', 'w')")
        return fork

    assert SUBMISSION not in asyncio.run(main()).files
    assert SUBMISSION in world.files


# --- DSBench ---


def test_rows_of_dsbench_become_tasks_and_missing_files_an_error_that_names_them(shared):
    path = str(shared / "data/dsbench_modeling_eval.json")
    environment = DataScienceEnvironment(train=path, test=path)
    tasks = modelling_tasks(shared / "data/dsbench_modeling_eval.json")
    assert len(tasks) == 8
    by_id = {task.id: read_grading(task) for task in tasks}
    assert by_id["playground-series-s4e6"].metric == "accuracy"
    assert len(by_id["playground-series-s4e3"].targets) == 7
    with pytest.raises(ValueError, match=r"task playground-series-s4e6: its file .*train.csv"):
        environment.open(tasks[0], seed=0)
    with pytest.raises(ValueError, match=r"none of its 8 tasks has its files.*environment\.root"):
        environment.tasks("test")


def write_rows(folder, names, *, lacking=()) -> str:
    """Rows of DSBench, each with a folder of files but for those in `lacking`; path of the rows."""
    rows = []
    for name in names:
        files = {key: f"./{name}/{place}" for key, place in PLACES.items()}
        rows.append(
            json.dumps({"prompt": f"Predict {name}.", "metadata": {"task_id": name} | files})
        )
        for file, text in FILES.items() if name not in lacking else ():
            (folder / name / file).parent.mkdir(parents=True, exist_ok=True)
            (folder / name / file).write_text(text)
    record = {"metric": "rmse", "target_column": "y", "id_column": "id"}
    (folder / "eval.json").write_text("\n".join(rows))
    (folder / "x_cleaned_prompts.json").write_text(json.dumps(dict.fromkeys(names, record)))
    return str(folder / "eval.json")


def test_rows_whose_files_are_missing_are_left_out_and_named_in_one_line(tmp_path, caplog):
    names = [f"t{number}" for number in range(10)]
    lacking = names[2:9]
    path = write_rows(tmp_path, names, lacking=lacking)
    environment = DataScienceEnvironment(train=path, test=path)
    assert [task.id for task in environment.tasks("train")] == ["t0", "t1", "t9"]
    [line] = caplog.messages
    assert line.startswith(f"{path}: 7 of 10 tasks are left out")
    assert "missing: t2, t3, t4, t5, t6 and 2 more; first: there is no file " in line
    assert line.endswith("t2/train.csv")
    environment.open(environment.tasks("train")[0], seed=0)


def remove_answers(folder):
    for file in (folder / "answers").iterdir():
        file.unlink()
    (folder / "answers").rmdir()


@pytest.mark.parametrize(
    ("break_files", "told"),
    [
        (lambda folder: (folder / "test.csv").unlink(), "no file .*test.csv"),
        (remove_answers, "no folder .*answers"),
        (lambda folder: (folder / "answers/truth.csv").unlink(), "holds 0 CSV files"),
        (lambda folder: (folder / "answers/more.csv").write_text("id"), "holds 2 CSV files"),
    ],
)
def test_each_file_of_a_row_is_looked_for(tmp_path, caplog, break_files, told):
    path = write_rows(tmp_path, ["t0", "t1"])
    environment = DataScienceEnvironment(train=path, test=path)
    assert len(environment.tasks("train")) == 2
    assert not caplog.messages
    break_files(tmp_path / "t1")
    assert [task.id for task in environment.tasks("train")] == ["t0"]
    [line] = caplog.messages
    assert re.search(rf"left out.*missing: t1; first: .*{told}", line)


def test_rows_that_the_companion_file_does_not_know_are_left_out_unless_most_are(tmp_path, caplog):
    path = write_rows(tmp_path, ["t0", "t1", "t2"])
    records = json.loads((tmp_path / "x_cleaned_prompts.json").read_text())
    environment = DataScienceEnvironment(train=path, test=path)
    del records["t1"]
    (tmp_path / "x_cleaned_prompts.json").write_text(json.dumps(records))
    assert [task.id for task in environment.tasks("test")] == ["t0", "t2"]
    [line] = caplog.messages
    assert "eval.json:2: the companion file has no record of 't1'" in line
    assert "left out (1 of 3)" in line
    del records["t2"]
    (tmp_path / "x_cleaned_prompts.json").write_text(json.dumps(records))
    with pytest.raises(ValueError, match=r"no record of 't1'.*2 of 3 rows are like it"):
        environment.tasks("test")


def dsbench(folder, *, metric="rmse", target="y", **record) -> Task:
    record = {"metric": metric, "target_column": target, "id_column": "id"} | record
    row = {"prompt": "Predict.", "answer": None, "metadata": {"task_id": "t"} | PLACES}
    (folder / "eval.json").write_text(json.dumps(row))
    (folder / "x_cleaned_prompts.json").write_text(json.dumps({"t": record}))
    return modelling_tasks(folder / "eval.json")[0]


PLACES = {"train_file": "train.csv", "test_file": "test.csv", "answer_dir": "answers"}
FILES = {
    "train.csv": "id,y\n1,0\n2,2\n",
    "test.csv": "id\n3\n4\n",
    "answers/truth.csv": "id,y\n3,0\n4,4\n",
}


def test_a_task_of_dsbench_is_scored_by_its_files(tmp_path):
    (tmp_path / "answers").mkdir()
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    guess = b"id,y\n4,3\n3,1\n"  # rmse 1; the mean of train.csv has sqrt(5)
    assert scored(dsbench(tmp_path), guess)[0] == pytest.approx(1 - 1 / np.sqrt(5))
    assert scored(dsbench(tmp_path, baseline=3, best=1), guess)[0] == 1.0
    world = DataScienceWorld(dsbench(tmp_path), nothing_runs, limits=Limits())
    assert {*world.files} == {"train.csv", "test.csv"}
    with pytest.raises(ValueError, match="no column 'z'"):
        scored(dsbench(tmp_path, target=["z", "y"]), guess)


@pytest.mark.parametrize(
    ("change", "told"),
    [({"metric": "best"}, "no metric 'best'"), ({"target_column": None}, "TypeError")],
)
def test_a_record_that_cannot_be_scored_is_named_with_its_row(tmp_path, change, told):
    with pytest.raises(ValueError, match=rf"eval.json:1: .*{told}"):
        dsbench(tmp_path, **change)


def test_the_environment_opens_worlds_and_closes_their_sandbox(sandbox):
    async def main():
        environment = DataScienceEnvironment(test=["generated"], test_size=2, kinds=["counts"])
        tasks = environment.tasks("test")
        world = environment.open(tasks[1], seed=0)
        seen = await world.reset()
        said = await world.tools()[0].call(code="import numpy; print(open('test.csv').read()[:2])")
        await environment.close()
        return len(tasks), seen.text, said

    assert asyncio.run(main()) == (2, "Files: test.csv, train.csv", "id")


def test_options_without_effect_are_errors():
    for options in ({"prompts": "a"}, {"root": "a"}):
        with pytest.raises(ValueError, match="no effect"):
            DataScienceEnvironment(**options)
    for options in ({"kinds": ["counts"]}, {"test_size": 3}):
        with pytest.raises(ValueError, match="no effect"):
            DataScienceEnvironment(train="a", test="b", **options)
