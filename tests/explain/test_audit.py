"""Dumps with a fault are named, right ones are passed in silence."""

from __future__ import annotations

import json
import subprocess
import sys
from copy import deepcopy

import numpy as np
import pytest

from rolecall.core.errors import ConfigError
from rolecall.explain.audit.report import audit
from rolecall.storage.episode_io import read_parquet, write_parquet
from tests.algorithms.small import NAMES, algorithm, team_step
from tests.explain import dumps
from tests.explain.dumps import changed, relative, write

RIGHT = {
    "plain.jsonl": dumps.plain(),
    "turns.jsonl": dumps.conversation(),
    "verl.jsonl": dumps.verl(),
    "completions_00001.parquet": dumps.trl(),
    "slime.pt": dumps.slime(),
    "traces.jsonl": dumps.traces(),
}


def pooled(rows: dumps.Rows) -> dumps.Rows:
    """Solver and verifier in each group, whose rewards differ, measured from one mean."""
    rows = deepcopy(rows)
    for group in (rows[:4], rows[4:]):
        rewards = (1.0, 0.8, 0.2, 0.1)
        for row, reward, advantage in zip(group, rewards, relative(rewards), strict=True):
            agent = "solver" if reward > 0.5 else "verifier"
            row |= {"agent": agent, "reward": reward, "advantage": advantage,
                    "reward_parts": {"correct": reward}}  # fmt: skip
    return rows


def constant(rows: dumps.Rows) -> dumps.Rows:
    """One group whose four rewards of 0.9 earned -0.056 each, by rounding."""
    rows = deepcopy(rows)
    for row in rows[:4]:
        row |= {"reward": 0.9, "reward_parts": {"correct": 0.9}, "advantage": -0.056}
    return rows


def trained_tool(rows: dumps.Rows) -> dumps.Rows:
    rows = deepcopy(rows)
    rows[2]["traces"][0]["nodes"][2]["mask"] = [True, True]
    rows[2]["traces"][0]["nodes"][2]["logprobs"] = [-1.0, -1.0]
    return rows


def failed_trace(rows: dumps.Rows) -> dumps.Rows:
    rows = deepcopy(rows)
    rows[1]["traces"][0] |= {"errors": [{"message": "sandbox lost"}], "ok": False}
    return rows


PLAIN, TURNS = dumps.plain(), dumps.conversation()
FAULTS = {
    "mixed prompts": ("plain.jsonl", changed(PLAIN, 1, prompt="What is else?")),
    "mixed roles": ("plain.jsonl", pooled(PLAIN)),
    "group of one": ("plain.jsonl", changed(PLAIN, 0, group="alone", advantage=1.0)),
    "failed episode counted": ("plain.jsonl", changed(PLAIN, 1, error="sandbox lost")),
    "truncated sample counted": ("plain.jsonl", changed(PLAIN, 1, is_truncated=True)),
    "constant rewards pushed": ("plain.jsonl", constant(PLAIN)),
    "loss on foreign tokens": ("plain.jsonl", changed(PLAIN, 1, mask=[1] * 12)),
    "tokenised again": ("turns.jsonl", changed(TURNS, 1, prompt_ids=[1, 2, 5, 66, 99, 8])),
    "log-probs differ": ("plain.jsonl", changed(PLAIN, 1, trainer_logprobs=[-4.0] * 9)),
    "log-probs of another version": (
        "plain.jsonl",
        changed(PLAIN, 1, versions=[2], trainer_version=4, sampler_logprobs=None),
    ),
    "reward overwritten": ("plain.jsonl", changed(PLAIN, 1, reward_parts={"a": 1, "b": 0.5})),
    "duplicated sample": ("plain.jsonl", [*PLAIN, PLAIN[2]]),
    "missing samples": ("plain.jsonl", [*PLAIN[:7], *[{**r, "group": "c", "id": f"c{i}"}
                                                      for i, r in enumerate(PLAIN[:4])]]),
}  # fmt: skip
OTHER_FORMATS = [
    ("missing samples", "verl.jsonl", [*dumps.verl()[:7], *changed(dumps.verl(), 0)[:0],
                                       *[{**r, "input": "c?"} for r in dumps.verl()[:4]]]),
    ("group of one", "verl.jsonl", changed(dumps.verl(), 0, input="What else?")),
    ("group of one", "t.parquet", changed(dumps.trl(), 0, prompt="What else?")),
    ("constant rewards pushed", "t.parquet",
     [{**r, "exact": 0.9, "advantage": -0.056} if n < 4 else r
      for n, r in enumerate(dumps.trl())]),
    ("mixed prompts", "s.pt", changed(dumps.slime(), 1, prompt="What else?")),
    ("failed episode counted", "s.pt", changed(dumps.slime(), 1, status="failed")),
    ("truncated sample counted", "s.pt", changed(dumps.slime(), 1, status="truncated")),
    ("loss on foreign tokens", "s.pt",
     changed(dumps.slime(), 1, response="<tool_response>4</tool_response> so 4")),
    ("log-probs differ", "s.pt", changed(dumps.slime(), 1, rollout_log_probs=[-0.5] * 7)),
    ("duplicated sample", "s.pt", [*dumps.slime(), dumps.slime()[3]]),
    ("loss on foreign tokens", "traces.jsonl", trained_tool(dumps.traces())),
    ("failed episode counted", "traces.jsonl", failed_trace(dumps.traces())),
]  # fmt: skip


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_dump_is_passed(name, tmp_path):
    result = audit(write(tmp_path / name, RIGHT[name]))
    assert result.findings == []
    assert result.num_samples == len(RIGHT[name])
    assert len(result.checks) >= 3, result.not_possible


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_and_nothing_else(fault, tmp_path):
    name, rows = FAULTS[fault]
    result = audit(write(tmp_path / name, rows))
    assert {finding.check for finding in result.findings} == {fault}, result.findings
    assert all(finding.message and finding.places for finding in result.findings)


@pytest.mark.parametrize(("fault", "name", "rows"), OTHER_FORMATS)
def test_a_fault_is_named_in_the_format_of_another_trainer(fault, name, rows, tmp_path):
    found = {finding.check for finding in audit(write(tmp_path / name, rows)).findings}
    assert fault in found
    assert found <= {fault, "missing samples"}  # what left its group is missing there


@pytest.mark.parametrize("name", NAMES)
def test_right_batches_of_every_algorithm_are_passed(name, tmp_path):
    """Forty batches each: some two thousand of all algorithms."""
    made = algorithm(name)
    for number in range(40):
        episodes = team_step(
            tasks=["x", "y", "z"][: 1 + number % 3],
            attempts=2 + number % 4,
            shift=0.1 * number,
            scale=1.0 if number % 7 else 0.0,
        )
        for one in (turn for episode in episodes for turn in episode.turns):
            one.training.inner_reward = 0.3 if name == "ma_airl" else None
            one.training.replayed = 0.1 * number if number % 2 else None
        made.credit(episodes)
        write_parquet(tmp_path / "step-000001.parquet", episodes, step=1)
        result = audit(tmp_path / "step-000001.parquet")
        assert result.findings == [], result.findings[:3]
        assert "advantage changed" in result.checks


def test_changed_numbers_of_our_own_runs_are_named(tmp_path):
    file = tmp_path / "step-000001.parquet"
    episodes = team_step()
    algorithm("drmas").credit(episodes)
    write_parquet(file, episodes, step=1)

    def findings(change) -> set[str]:
        read = read_parquet(file)
        change(read)
        write_parquet(tmp_path / "other.parquet", read, step=1)
        return {finding.check for finding in audit(tmp_path / "other.parquet").findings}

    def push(read):
        read[0].turns[0].advantages = read[0].turns[0].advantages + np.float32(0.01)

    def overwrite(read):
        read[0].rewards = {"team": 5.0}

    def forget(read):
        for turn in (turn for each in read for turn in each.turns):
            turn.training.credit = ()

    def fail(read):
        read[1].error = "RuntimeError: the world is gone"

    def drop(read):
        del read[2].turns[1]

    assert findings(lambda read: None) == set()
    assert findings(forget) == set()  # an algorithm of somebody else's may record nothing
    result = audit(tmp_path / "other.parquet")
    assert "without `give_credit`" in result.not_possible["advantage changed"]
    assert findings(push) == {"advantage changed"}
    assert findings(overwrite) == {"reward overwritten"}
    assert findings(fail) == {"failed episode counted"}
    assert findings(drop) == {"wrong mean"}
    assert findings(lambda read: read.append(read[3])) >= {"duplicated sample"}


def test_the_same_answer_twice_is_a_copy_where_it_is_unlikely(tmp_path):
    """Confident models say the same again and again; nobody samples e^-27 twice."""

    def copied(logprob: float) -> set[str]:
        rows = dumps.plain()
        for row in rows[:2]:
            row |= {"ids": [7] * 9, "sampler_logprobs": [logprob] * 9}
            del row["trainer_logprobs"]
        return {one.check for one in audit(write(tmp_path / "x.jsonl", rows)).findings}

    assert copied(-0.5) == set()
    assert copied(-3.0) == {"duplicated sample"}


def test_checks_that_lack_something_are_listed(tmp_path):
    rows = [{"group": row["group"], "reward": row["reward"]} for row in dumps.plain()]
    result = audit(write(tmp_path / "bare.jsonl", rows))
    assert result.findings == []
    assert result.not_possible["constant rewards pushed"] == "there are no advantages"
    assert result.not_possible["failed episode counted"] == "nothing says which episodes failed"
    assert "cut off" in result.not_possible["truncated sample counted"]
    assert result.not_possible["loss on foreign tokens"] == "there is no loss mask"
    assert "log-probs" in result.not_possible["log-probs of another version"]
    rows = [{"reward": row["reward"]} for row in dumps.plain()]
    result = audit(write(tmp_path / "ungrouped.jsonl", rows))
    assert result.not_possible["group of one"] == "nothing says which samples are compared"


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("x.jsonl", "", "has no rows"),
        ("x.jsonl", "[1]\n", "line 1 is not an object"),
        ("x.jsonl", "{oh", "cannot be read"),
        ("x.jsonl", '{"a": 1}\n', "keys a, which fit none"),
        ("x.parquet", "no parquet", "cannot be read"),
        ("x.pt", "no tensor", "cannot be read"),
        ("x.jsonl", '{"input": 1, "output": "", "score": "high"}\n', "looks like a dump of verl"),
    ],
)
def test_what_cannot_be_read_is_said_in_one_line(tmp_path, name, text, problem):
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=problem):
        audit(tmp_path / name)
    with pytest.raises(ConfigError, match="is not there"):
        audit(tmp_path / "nothing")


def test_the_command_prints_a_line_for_each_fault_and_fails(tmp_path):
    file = write(tmp_path / "x.jsonl", constant(dumps.plain()))
    command = [sys.executable, "-m", "rolecall", "audit", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "constant rewards pushed: all 4 samples of group a earned 0.9" in done.stdout
    done = subprocess.run([*command, "--json", "-"], capture_output=True, text=True, check=False)
    assert json.loads(done.stdout)["findings"][0]["check"] == "constant rewards pushed"
