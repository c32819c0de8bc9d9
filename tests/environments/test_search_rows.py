"""Rows of public question files become tasks; bad ones are named by file and line."""

from __future__ import annotations

import json

import pytest

from rolecall.core.types import Task
from rolecall.environments.search.rows import search_tasks

TARGET = {"target": ["Jane Austen", "Austen"]}
DRMAS = {
    "data_source": "searchR1_nq",
    "prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": "other"}],
    "ability": "fact-reasoning",
    "reward_model": {"style": "rule", "ground_truth": {"target": ["other"]}},
    "extra_info": {"index": 4, "split": "test"},
    "env_kwargs": {"question": "who wrote emma", "ground_truth": TARGET},
}
SEARCH_R1 = {
    "id": "train_0",
    "question": "who wrote emma",
    "golden_answers": ["other"],
    "data_source": "nq",
    "prompt": [{"role": "user", "content": "Answer it. Question: who wrote emma?\n"}],
    "reward_model": {"style": "rule", "ground_truth": TARGET},
    "extra_info": {"index": 0},
}


def write(path, *rows):
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


@pytest.mark.parametrize(
    ("row", "name", "answer", "source"),
    [
        (DRMAS, "4", ["Jane Austen", "Austen"], "searchR1_nq"),
        (SEARCH_R1, "train_0", ["Jane Austen", "Austen"], "nq"),
        (
            {k: v for k, v in SEARCH_R1.items() if k not in ("question", "id")},
            "0", ["Jane Austen", "Austen"], "nq",
        ),
        ({"question": "who wrote emma", "golden_answers": ["Jane"]}, "rows-1", "Jane", "rows"),
        ({"_id": "5a7", "question": "who wrote emma?", "answer": "Jane"}, "5a7", "Jane", "rows"),
        ({"id": 3, "prompt": "who wrote emma", "answer": 1815}, "3", "1815", "rows"),
    ],
)  # fmt: skip
def test_a_row_of_each_schema_becomes_a_task(tmp_path, row, name, answer, source):
    [task] = search_tasks(write(tmp_path / "rows.jsonl", row))
    assert (task.id, task.prompt, task.answer) == (name, "who wrote emma?", answer)
    assert task.info["source"] == source


def test_parquet_rows_with_nested_arrays_are_read(tmp_path):
    from pyarrow import Table, parquet

    parquet.write_table(Table.from_pylist([DRMAS, SEARCH_R1]), tmp_path / "test.parquet")
    tasks = search_tasks(tmp_path / "test.parquet")
    assert [task.answer for task in tasks] == [["Jane Austen", "Austen"]] * 2
    assert [task.prompt for task in tasks] == ["who wrote emma?"] * 2


def test_other_columns_stay_in_info(tmp_path):
    row = {"id": "1", "question": "q", "answer": "a", "level": "hard", "type": "bridge"}
    [task] = search_tasks(write(tmp_path / "rows.jsonl", row), source="hotpotqa")
    assert task == Task("1", "q?", "a", {"level": "hard", "type": "bridge", "source": "hotpotqa"})


def test_repeated_ids_are_made_unique(tmp_path):
    rows = [{"id": name, "question": "q", "answer": "a"} for name in ("x", "x-3", "x")]
    tasks = search_tasks(write(tmp_path / "rows.jsonl", *rows))
    assert [task.id for task in tasks] == ["x", "x-3", "x-3-3"]


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"answer": "a"}, "no question"),
        ({"question": " ", "answer": "a"}, "no question"),
        ({"prompt": [{"role": "system", "content": "s"}], "answer": "a"}, "no question"),
        ({"question": "q"}, "no truth"),
        ({"question": "q", "answer": ""}, "no truth"),
        ({"question": "q", "golden_answers": []}, "no truth"),
        ({"question": "q", "reward_model": {"ground_truth": {"target": []}}}, "no truth"),
    ],
)
def test_a_row_without_question_or_truth_is_named_by_file_and_line(tmp_path, row, told):
    path = write(tmp_path / "rows.jsonl", {"question": "q", "answer": "a"}, row, row)
    with pytest.raises(ValueError, match=told) as caught:
        search_tasks(path)
    assert str(caught.value).startswith(f"{path}:2: ")
