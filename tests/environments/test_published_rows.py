"""Rows that published evaluations are made of are read as the papers read them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rolecall.data import data_locations
from rolecall.data.finding import collect_files
from rolecall.data.known import DATA_SETS
from rolecall.environments.data_science.rows import modelling_tasks
from rolecall.environments.math.environment import MathEnvironment
from rolecall.environments.math.rows import math_tasks
from rolecall.environments.search.rows import search_tasks

SAYS = r"Let's think step by step and output the final answer within \boxed{}."


def write(path: Path, *rows: dict) -> Path:
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.mark.parametrize("between", ["\n", " ", "\\n", "\n\n"])
def test_the_instruction_that_dr_mas_strips_is_no_part_of_the_question(tmp_path, between):
    row = {
        "data_source": "dapo_filter",
        "prompt": [{"role": "user", "content": f"What is 1 + 1?{between}{SAYS}\n"}],
        "reward_model": {"ground_truth": "2", "style": "rule"},
    }
    [task] = math_tasks(write(tmp_path / "dapo.jsonl", row))
    assert (task.prompt, task.answer) == ("What is 1 + 1?", "2")
    assert task.info["instruction"] == SAYS


@pytest.mark.parametrize("question", [SAYS, f"{SAYS} What is 1 + 1?", "Let's think: 1 + 1?"])
def test_other_sentences_stay_in_the_question(tmp_path, question):
    [task] = math_tasks(write(tmp_path / "a.jsonl", {"question": question, "answer": "2"}))
    assert task.prompt == question
    assert "instruction" not in task.info


def test_a_final_answer_is_a_truth(tmp_path):
    rows = [
        {"question": "x?", "solution": ["long"], "final_answer": ["$2$"], "unit": None},
        {"question": "y?", "solution": r"so \boxed{7}", "final_answer": "3"},
    ]
    first, second = math_tasks(write(tmp_path / "olympiad.jsonl", *rows))
    assert (first.answer, second.answer) == ("2", "3")


def test_some_years_of_a_source_are_a_benchmark(tmp_path):
    years = [{"problem": f"{n}?", "answer": "1", "year": year}
             for n, year in enumerate((2022, 2023, 2023, 2024))]  # fmt: skip
    files = [
        write(tmp_path / "aime.jsonl", *years),
        write(tmp_path / "other.jsonl", {"problem": "z?", "answer": "1"}),
    ]
    names = [str(file) for file in files]
    environment = MathEnvironment(test=names, where={"year": [2023, 2024]})
    assert [task.prompt for task in environment.tasks("test")] == ["1?", "2?", "3?", "z?"]
    assert len(MathEnvironment(test=names, where={"year": "2022"}).tasks("test")) == 2
    with pytest.raises(ValueError, match=r"where: no row of .*aime.jsonl has year=1999"):
        MathEnvironment(test=names, where={"year": 1999}).tasks("test")
    with pytest.raises(ValueError, match=r"where has no effect"):
        MathEnvironment(where={"year": 1999})


@pytest.mark.parametrize("name", ["minerva", "OlympiadBench"])
def test_benchmarks_are_found_by_their_names(monkeypatch, name):
    asked = []
    files = ["README.md", "data/test.jsonl"]
    monkeypatch.setattr(data_locations, "_hub_files", lambda repo, **_: files)
    monkeypatch.setattr(data_locations, "_download", lambda *given, **_: asked.append(given))
    data_locations.locate(name, split="test")
    assert asked == [(data_locations.HUBS[name.casefold()], "data/test.jsonl")]
    with pytest.raises(ValueError, match="nearest: minerva"):
        data_locations.locate("minervva", split="test")


def test_kinds_of_dsbench_are_told_apart_by_the_companion_file(shared):
    path = shared / "data/dsbench_modeling_eval.json"
    tasks = modelling_tasks(path, by_type=True)
    sources = [task.source for task in tasks]
    assert sources.count("dsbench-classification") == 6  # rows say regression of two of them
    assert sources.count("dsbench-regression") == 2
    assert {task.source for task in modelling_tasks(path)} == {"dsbench"}


def test_dsbench_has_a_train_split(tmp_path):
    train, test = (tmp_path / f"dsbench_modeling_{name}.json" for name in ("train", "eval"))
    for path in (train, test):
        path.write_text("{}")
    found = collect_files(DATA_SETS["dsbench"], [str(train), str(test)])
    assert found == {"train": [train], "test": [test]}
    assert collect_files(DATA_SETS["dsbench"], [str(tmp_path)]) == found


def test_a_file_may_have_its_own_names_of_columns(tmp_path):
    row = {"puzzle": "1 + 1?", "result": "2", "answer": "three"}
    path = write(tmp_path / "a.jsonl", row)
    columns = {"question": "puzzle", "answer": "result"}
    [task] = math_tasks(path, columns=columns)
    assert (task.prompt, task.answer) == ("1 + 1?", "2")
    [task] = search_tasks(path, columns=columns)
    assert (task.prompt, task.answer) == ("1 + 1?", "2")
    with pytest.raises(ValueError, match=r"a\.jsonl:1: no column .query. \(columns: puzzle"):
        math_tasks(path, columns={"question": "query"})


def test_names_of_columns_are_refused_where_no_file_is_read():
    with pytest.raises(ValueError, match="columns has no effect, because no file is read"):
        MathEnvironment(columns={"question": "puzzle"})
