"""`rolecall eval --answers` grades what another program wrote."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rolecall.core.errors import ConfigError
from rolecall.runs.grade_answers import grade_answers


def rows(folder: Path, *answers: dict) -> Path:
    file = folder / "answers.jsonl"
    lines = [
        json.dumps({"question": f"{n} + 1", "answer": str(n + 1)} | row)
        for n, row in enumerate(answers, 1)
    ]
    file.write_text("\n".join(lines))
    return file


def test_several_answers_of_a_row_are_attempts(tmp_path):
    first = ["\\boxed{2}", "\\boxed{3}", "so \\boxed{2.0}", "none"]
    second = ["\\boxed{5}", "\\boxed{5}", "\\boxed{3}", "\\boxed{1}"]
    file = rows(tmp_path, {"responses": first}, {"responses": second})
    result = grade_answers(file, "math", [])
    assert result["avg@4"] == pytest.approx((2 / 4 + 1 / 4) / 2)
    assert result["maj@4"] == 0.5
    assert (result["pass@4"], result["num_tasks"]) == (1.0, 2)


def test_one_answer_is_read_as_the_environments_options_say(tmp_path):
    file = rows(tmp_path, {"response": "I say 2"})
    assert grade_answers(file, "math", [])["avg@1"] == 0.0
    assert grade_answers(file, "math", ["environment.answer=last"])["avg@1"] == 1.0


@pytest.mark.parametrize(
    ("answers", "environment", "message"),
    [
        ([{"response": "2"}], None, "name what grades them: --environment NAME"),
        ([{"said": "2"}], "math", "row answers-1 has no text in responses or response"),
        ([{"responses": []}], "math", "row answers-1 has no text in responses or response"),
        ([{"responses": ["2", "2"]}, {"responses": ["3"]}], "math", "rows have 1 to 2 answers"),
    ],
)
def test_what_cannot_be_graded_is_one_line(tmp_path, answers, environment, message):
    with pytest.raises(ConfigError, match=message) as error:
        grade_answers(rows(tmp_path, *answers), environment, [])
    assert "\n" not in str(error.value)


def test_a_missing_file_is_one_line(tmp_path):
    with pytest.raises(ConfigError, match=r"gone\.jsonl"):
        grade_answers(tmp_path / "gone.jsonl", "math", [])
