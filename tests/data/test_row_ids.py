"""Whatever reads rows gives each an id of its own, the same one each time."""

from __future__ import annotations

import json
import logging
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from rolecall.agents.agent import Policy
from rolecall.data.tasks import named_rows
from rolecall.demonstrations.offline_data import demonstrations, preferences
from rolecall.engines.scripted import ScriptedEngine
from rolecall.environments.code.rows import code_tasks
from rolecall.environments.data_science.rows import modelling_tasks
from rolecall.environments.debate import DebateEnvironment
from rolecall.environments.math.environment import MathEnvironment
from rolecall.environments.math.rows import math_tasks
from rolecall.environments.search.rows import search_tasks
from rolecall.environments.text.rows import text_tasks
from rolecall.models.loading import load_tokenizer
from tests.toy import agent

RECORD = {"metric": "rmse", "target_column": "y", "id_column": "id"}
DSBENCH = {"train_file": "train.csv", "test_file": "test.csv", "answer_dir": "answers"}


def modelling(path: Path):
    """Of rows whose records the companion file has, whatever their ids are."""
    names = [str(json.loads(line)["metadata"]["task_id"]) for line in path.read_text().splitlines()]
    companion = path.with_name("cleaned_prompts.json")
    companion.write_text(json.dumps(dict.fromkeys(names, RECORD)))
    return modelling_tasks(path)


READERS = {
    "math": (math_tasks, {"question": "1 + 1?", "answer": "2"}),
    "search": (search_tasks, {"question": "who?", "answer": "Jane"}),
    "code": (code_tasks, {"question": "Add.", "inputs": ["1"], "outputs": ["2"]}),
    "text": (
        lambda path: text_tasks(path, question="question", answer=None), {"question": "Say it."}
    ),
    "debate": (
        lambda path: DebateEnvironment(train=str(path)).tasks("train"), {"proposition": "Tea."}
    ),
}  # fmt: skip


@pytest.fixture(params=[*READERS, "preferences", "demonstrations"])
def ids_of(request, model_folder, tmp_path):
    """-> the ids that a reader gives rows with these columns beside those that it needs."""
    if request.param in READERS:
        reader, needed = READERS[request.param]
    else:
        tokenizer = load_tokenizer(str(model_folder))
        solver = agent("solver", Policy("p", tokenizer, ScriptedEngine(tokenizer, lambda _: "")))
        read = preferences if request.param == "preferences" else demonstrations
        reader = lambda path: [group[0].task for group in read(path, {"solver": solver})]  # noqa: E731
        needed = {"prompt": "a?", "chosen": "x", "rejected": "y", "completion": "z"}

    def ids(*rows, name="rows.jsonl"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(json.dumps(needed | row) for row in rows))
        return [task.id for task in reader(path)]

    return ids


def test_a_row_without_an_id_gets_one_of_the_file_and_its_number(ids_of):
    assert ids_of({}, {"id": "a"}, {"id": None}, {"id": " "}) == ["rows-1", "a", "rows-3", "rows-4"]


def test_a_repeated_id_gets_the_number_of_its_row(ids_of):
    rows = [{"id": name} for name in ("x", "x-3", "x", "x", "rows-6")]
    assert ids_of(*rows, {}) == ["x", "x-3", "x-3-3", "x-4", "rows-6", "rows-6-6"]


def test_an_id_that_is_a_number_is_its_text_however_it_is_written(ids_of):
    assert ids_of({"id": 7}, {"id": 8.0}, {"id": "7"}, {"id": 0}, {"id": 0.5}) == [
        "7", "8", "7-3", "0", "0.5",
    ]  # fmt: skip


def test_the_same_file_gives_the_same_ids_each_time(ids_of):
    rows = [{"id": 1}, {}, {"id": 1}]
    assert ids_of(*rows) == ids_of(*rows) == ids_of(*rows, {"id": 1})[:3]


def test_rows_of_a_modelling_benchmark_have_the_ids_of_their_tasks(tmp_path):
    path = tmp_path / "eval.json"
    names = ["s1", 4, "s1", "s1-3"]
    rows = [{"prompt": "Fit it.", "metadata": DSBENCH | {"task_id": name}} for name in names]
    path.write_text("\n".join(map(json.dumps, rows)))
    tasks = modelling(path)
    assert [task.id for task in tasks] == ["s1", "4", "s1-3", "s1-3-4"]
    path.write_text(json.dumps({"prompt": "Fit it.", "metadata": DSBENCH}))
    with pytest.raises(ValueError, match=r"eval\.json:1: .*no record of '', the row's metadata"):
        modelling_tasks(path)


def test_one_warning_names_file_and_row_of_the_first_repeated_id(tmp_path, caplog):
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps({"id": name}) for name in ("a", "b", "b", "a", "a")))
    with caplog.at_level(logging.WARNING):
        assert [name for name, _, _ in named_rows(path)] == ["a", "b", "b-3", "a-4", "a-5"]
    [told] = [record.getMessage() for record in caplog.records]
    assert told == (
        f"{path}:3: an earlier row has the id 'b', this one is 'b-3' (2 more rows are like it)"
    )
    caplog.clear()
    path.write_text('{"id": "a"}\n{}')
    list(named_rows(path))
    assert not caplog.records


def test_a_column_of_ids_that_a_table_turned_into_floats_reads_the_same(tmp_path):
    columns = {"id": pa.array([3.0, None, float("nan"), 5.0]), "question": list("abcd")}
    parquet.write_table(pa.table(columns), tmp_path / "rows.parquet")
    names = [name for name, _, _ in named_rows(tmp_path / "rows.parquet")]
    assert names == ["3", "rows-2", "rows-3", "5"]


def test_files_with_equal_ids_and_equal_names_stay_apart(tmp_path):
    files = []
    for folder in ("one", "two"):
        files.append(tmp_path / folder / "train.jsonl")
        files[-1].parent.mkdir()
        rows = [{"id": number, "question": f"{folder} {number}?", "answer": 1} for number in (1, 2)]
        files[-1].write_text("\n".join(map(json.dumps, rows)))
    tasks = MathEnvironment(train=[*map(str, files), str(files[0])], test="x").tasks("train")
    assert [task.id for task in tasks] == [
        "train/1", "train/2", "train-2/1", "train-2/2", "train-3/1", "train-3/2",
    ]  # fmt: skip
