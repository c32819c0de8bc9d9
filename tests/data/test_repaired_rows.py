"""Half of a surrogate pair in a row ends no run: the row is repaired when it is read."""

from __future__ import annotations

import json

import pytest

from rolecall.core.types import Task
from rolecall.data.files import read_rows
from tests.toy import command, write

HALF = "what is \ud800 1 + 1?"
ROWS = [{"question": HALF, "answer": "#### 2", "more\udfff": [{"x": "\ud83d"}]},
        {"question": "whole \U0001f600?", "answer": "#### 3"}]  # fmt: skip


@pytest.mark.parametrize("form", ["lines", "array"])
def test_halves_of_pairs_become_question_marks_and_whole_pairs_stay(form, tmp_path):
    file = tmp_path / "rows.jsonl"
    lines = [json.dumps(row) for row in ROWS]
    file.write_text("\n".join(lines) if form == "lines" else f"[{', '.join(lines)}]")
    assert "\\ud800" in file.read_text()
    first, second = (row for _, row in read_rows(file))
    assert first == {"question": "what is ? 1 + 1?", "answer": "#### 2", "more?": [{"x": "?"}]}
    assert second == ROWS[1]


def test_a_task_of_any_environment_can_be_written_down():
    task = Task("\ud800", HALF)
    assert (task.id, task.prompt) == ("?", "what is ? 1 + 1?")


def test_a_run_on_such_rows_comes_to_its_end(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(ROWS[0] | {"id": str(k)}) + "\n" for k in range(4)))
    config = {
        "extends": "math_alone",
        "evaluation": {"tasks": 2, "samples": 1, "k": 1},
        "trainer": {"steps": 1}, "rollout": {"groups": 2, "group_size": 2},
    }  # fmt: skip
    part = f"environment={{name: math, train: {file}, test: {file}}}"
    run = tmp_path / "run"
    command("train", write(tmp_path / "c.yaml", config), part, "--output", run)
    command("train", run, "trainer.steps=2")
    kinds = [json.loads(line)["kind"] for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert kinds == ["evaluation", "step", "evaluation", "step", "evaluation"]
