"""What is damaged in a run costs what it says, and never the answer or the other runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from fastapi.testclient import TestClient

from rolecall.storage.episode_io import write_parquet
from rolecall.watch.runs import Runs
from rolecall.watch.server import Watch, make_app
from tests.watch.small_runs import CONFIG, append_line, make_episode, make_record, write_run

STEP = "episodes/step-000002.parquet"
EVALUATION = "evaluation-000002.parquet"
MATRIX = "evaluated/crossplay.json"
QUESTIONS = (
    "runs", "run?run=mine", "changes?run=mine", "step?run=mine", "group?run=mine&task=add",
    "talk?run=mine&episode=2:add:1", "talk?run=mine&episode=2:add:1&split=evaluation",
    "tokens?run=mine&turn=2:add:1/0", "spikes?run=mine", "find?run=mine&q=add", "find?run=mine&q=",
    "task?run=mine&task=add", "compare?first=mine&second=whole", "prompts?run=mine",
    "coach?run=mine", "tools?run=mine", "roles?run=mine", "matrix?run=mine",
)  # fmt: skip
# Enough goes wrong in this step for each piece of advice to look at the config.
TROUBLE = make_record(3) | {
    "agent/solver/truncated": 0.5, "agent/solver/invalid": 0.9, "agent/solver/zero_signal": 1.0,
    "agent/solver/mismatch_mean": 1.0, "rollout/failures": 2.0, "failures/TimeoutError": 2.0,
    "rollout/stale_groups": 2.0,
}  # fmt: skip


@pytest.fixture
def run(tmp_path) -> Path:
    write_run(tmp_path / "runs" / "whole", steps=1)
    run = write_run(tmp_path / "runs" / "mine", steps=2)
    episodes = [make_episode(2, task, attempt) for task in ("add", "sub") for attempt in (0, 1)]
    write_parquet(run / EVALUATION, episodes, step=2)
    (run / "evaluated").mkdir()
    table = {"agent": "solver", "others": ["judge"], "of": "team", "runs": ["A"], "mean": [[1.0]]}
    record = {"matrices": [table], "runs": {"A": {"path": "/x/y", "step": 2}}}
    (run / MATRIX).write_text(json.dumps(record))
    return run


def check_answers(run: Path) -> dict[str, int]:
    """Ask everything: no answer may be an error of the server, and each must be JSON."""
    client = TestClient(make_app(Watch(Runs([run.parent]))))  # raises what a route raises
    statuses = {}
    for question in QUESTIONS:
        answer = client.get(f"/api/{question}")
        for line in answer.text.splitlines():
            json.loads(line, parse_constant=pytest.fail)  # NaN is no JSON
        statuses[question] = answer.status_code
    assert statuses["runs"] == 200
    assert set(statuses.values()) <= {200, 404}, statuses
    return statuses


def change(run: Path, column: str, value: object) -> None:
    """Write a value into each row of a column of episodes; None removes the column."""
    for file in (run / STEP, run / EVALUATION):
        table = pq.read_table(file)
        number = table.column_names.index(column)
        if value is None:
            table = table.remove_column(number)
        else:
            values = pa.array([value] * len(table), table.schema.field(column).type)
            table = table.set_column(number, column, values)
        pq.write_table(table, file)


def test_a_whole_run_answers_everything(run):
    assert set(check_answers(run).values()) == {200}


COLUMNS = sorted(pq.read_schema(Path(__file__).parents[1] / "runs/run_of_0_1/run" / STEP).names)
NEW = ["credit", "metrics", "weight", "temperature", "began_s", "ended_s"]


@pytest.mark.parametrize("column", [*NEW, *(name for name in COLUMNS if name not in NEW)])
def test_a_file_without_a_column_is_shown_without_it(run, column):
    change(run, column, None)
    statuses = check_answers(run)
    if column in NEW:
        assert set(statuses.values()) == {200}


@pytest.mark.parametrize(
    "info",
    [
        "", "[]", "null", '{"a": NaN}', '{"calls": 3}', '{"calls": [3, null, {}]}',
        '{"calls": [{"name": null, "arguments": null, "problem": 3, "seconds": "x"}]}',
        '{"coach": {"score": "x", "reasoning": null, "usage": 3}}',
        '{"coach": {"score": 1, "hindsight": {"score": NaN, "usage": null}}}',
        '{"verdict": ["a"], "observation": 3, "utility": 3, "temperature": 0}',
        '{"x": ' + "[" * 3000 + "]" * 3000 + "}", '{"x": "\\ud800"}',
    ],
)  # fmt: skip
def test_notes_that_mean_nothing_are_left_out(run, info):
    change(run, "info", info)
    check_answers(run)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("credit", "[3]"), ("credit", '[{"kind": "Nope"}]'), ("credit", '[{"kind": "Compared"}]'),
        ("credit", '[{"kind": "Compared", "score": NaN, "mean": NaN, "std": NaN, "n": 2}]'),
        ("score", float("nan")), ("advantage", float("inf")), ("weight", float("nan")),
        ("temperature", 0.0), ("advantages", [float("nan")] * 2), ("logprobs", [50.0, -1.0]),
        ("logprobs", [1.0]), ("token_ids", []), ("path", []), ("parents", ["2:add:1/1"]),
        ("turn", "same"), ("text", "\0\u202e"), ("messages", [{"role": None, "content": None}]),
        ("error", ""), ("episode_rewards", [("team", float("nan"))]), ("candidate", 3),
    ],
)  # fmt: skip
def test_values_that_cannot_be_are_no_error_of_the_server(run, column, value):
    change(run, column, value)
    check_answers(run)


@pytest.mark.parametrize("content", [None, b"", b"PAR1junkPAR1", b"\0" * 300, b"\xff\xfe\n"])
@pytest.mark.parametrize(
    "name",
    [STEP, EVALUATION, MATRIX, "updates/step-000002.parquet", "metrics.jsonl", "config.yaml"],
)
def test_a_file_that_is_gone_or_damaged_leaves_the_others(run, name, content):
    (run / name).unlink()
    if content is not None:
        (run / name).write_bytes(content)
    check_answers(run)
    (run / name).unlink(missing_ok=True)
    (run / name).mkdir()
    check_answers(run)


@pytest.mark.parametrize("value", [None, 3, "x", [1], {"a": 1}, {3: 4}, {None: 1}, float("nan")])
@pytest.mark.parametrize(
    "key",
    [
        "team", "team.solver", "team.solver.sampling", "team.solver.sampling.max_tokens",
        "policies", "policies.small", "workflow", "algorithm", "rewards", "rollout",
        "rollout.timeout_s", "rollout.group_size", "trainer", "trainer.steps",
        "trainer.max_staleness", "learner",
    ],
)  # fmt: skip
def test_a_config_of_another_kind_costs_no_other_run(run, key, value):
    config = json.loads(json.dumps(CONFIG))
    *sections, last = key.split(".")
    section = config
    for name in sections:
        section = section[name]
    section[last] = value
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    append_line(run, TROUBLE)
    check_answers(run)


@pytest.mark.parametrize(
    "text", ["3", "[]", '{"matrices": [3]}', '{"matrices": [{"others": 3, "runs": 3}], "runs": []}']
)
def test_a_matrix_of_another_kind_is_said_to_be_missing_or_empty(run, text):
    (run / MATRIX).write_text(text)
    check_answers(run)


def test_advice_that_cannot_be_given_is_said_to_be_missing(run):
    config = CONFIG | {"trainer": {"steps": 4, "max_staleness": "many"}}
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    append_line(run, TROUBLE)
    client: Callable = TestClient(make_app(Watch(Runs([run.parent])))).get
    answer = client("/api/run", params={"run": "mine"}).json()
    assert answer["advice"] == []
    assert [missing["what"] for missing in answer["missing"]] == ["advice"]
