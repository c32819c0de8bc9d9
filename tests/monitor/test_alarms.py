"""Alarms are raised for agents that stop working, roles that lose their weights, and no others."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from rolecall.monitor.alarms import WINDOW, AlarmWatch, find_alarms, measure_alignment
from rolecall.storage.run_folder import RunFolder
from tests.cli.test_cli import rolecall
from tests.toy import relay_config, write

OWN = {"solver": "solver", "helper": "helper"}
SHARED = {"writer": "team", "judge": "team"}


def steps(**columns: list[float]) -> list[dict]:
    """Records of steps; a column `helper__tokens` holds `agent/helper/tokens` of each."""
    lengths = {len(values) for values in columns.values()}
    [number] = lengths
    records = [{"kind": "step", "step": n + 1, "rollout/episodes": 8} for n in range(number)]
    for name, values in columns.items():
        for record, value in zip(records, values, strict=True):
            record[f"agent/{name.replace('__', '/')}"] = value
    return records


def fall(high: float, low: float) -> list[float]:
    """Ten steps at one level and ten at another, with a little noise."""
    return [
        level + 0.02 * level * math.sin(9 * n) for n, level in enumerate([high] * 10 + [low] * 10)
    ]


FLAT = fall(10.0, 10.0)


def test_an_agent_whose_answers_shrink_is_named_with_its_numbers():
    [alarm] = find_alarms(steps(helper__tokens=fall(8.0, 2.0), solver__tokens=FLAT), OWN)
    assert (alarm.kind, alarm.agent) == ("lazy", "helper")
    assert 10 < alarm.step <= 10 + WINDOW
    assert 5 <= alarm.since <= 10
    assert f"up to step {alarm.since}" in alarm.text
    assert "8" in alarm.text
    assert "solver kept on" in alarm.text


@pytest.mark.parametrize(
    "columns",
    [
        {"helper__tokens": fall(8.0, 5.5), "solver__tokens": FLAT},  # shorter, and not by much
        {"helper__tokens": fall(8.0, 2.0), "solver__tokens": fall(9.0, 2.0)},  # all are
        {"helper__tokens": fall(2.0, 8.0), "solver__tokens": FLAT},
        {  # answers that were cut now end
            "helper__tokens": fall(64.0, 20.0), "solver__tokens": FLAT,
            "helper__truncated": fall(0.8, 0.0),
        },
        {  # it has learned its task
            "helper__zero_signal": [0.0] * 10 + [1.0] * 10, "solver__zero_signal": [0.0] * 20,
            "helper__reward": fall(0.5, 1.0), "helper__tokens": FLAT, "solver__tokens": FLAT,
        },
    ],
)  # fmt: skip
def test_no_alarm_without_a_lazy_agent(columns):
    assert find_alarms(steps(**columns), OWN) == []


def test_an_agent_without_signal_that_earns_less_than_before_is_lazy():
    [alarm] = find_alarms(
        steps(
            helper__zero_signal=[0.0] * 10 + [1.0] * 10, solver__zero_signal=[0.0] * 20,
            helper__reward=fall(0.8, 0.3), helper__tokens=FLAT, solver__tokens=FLAT,
        ),
        OWN,
    )  # fmt: skip
    assert "helper learns less and less: 1 of its turns with an advantage" in alarm.text


def test_an_agent_whose_turns_gain_nothing_is_lazy():
    records = steps(helper__tokens=FLAT, solver__tokens=FLAT)
    for record, gain in zip(records, fall(0.6, 0.02), strict=True):
        record["algorithm/gain/helper"], record["algorithm/gain/solver"] = gain, 0.5
    [alarm] = find_alarms(records, OWN)
    assert "helper is of less and less use" in alarm.text


def test_an_agent_that_is_no_longer_called_is_lazy():
    records = steps(helper__tokens=FLAT, solver__tokens=FLAT)
    for record in records[10:]:
        del record["agent/helper/tokens"]
    [alarm] = find_alarms(records, OWN)
    assert alarm.agent == "helper"


def test_each_alarm_is_raised_once_and_frozen_agents_raise_none():
    records = steps(helper__tokens=fall(8.0, 2.0), solver__tokens=FLAT)
    watch = AlarmWatch(OWN)
    raised = [alarm for record in records for alarm in watch.after_step(record)]
    assert raised == find_alarms(records, OWN)
    assert len(raised) == 1
    assert find_alarms(records, {"solver": "solver"}) == []
    assert find_alarms([{"kind": "evaluation", "step": 3}, *records], OWN) == raised


def norms(**vectors: np.ndarray) -> dict[str, float]:
    """The metrics of gradients that agents of the policy `team` add up."""
    whole = np.sum([*vectors.values()], axis=0)
    return {
        "policy/team/grad_norm": float(np.linalg.norm(whole)),
        **{f"agent/{name}/grad_norm": float(np.linalg.norm(v)) for name, v in vectors.items()},
    }


def test_the_alignment_of_two_agents_is_exact():
    random = np.random.default_rng(0)
    for _ in range(20):
        writer, judge = random.normal(size=(2, 4)) * [[5.0], [1.0]]
        record, whole = norms(writer=writer, judge=judge), writer + judge
        for agent, own in (("writer", writer), ("judge", judge)):
            cosine = own @ whole / np.linalg.norm(own) / np.linalg.norm(whole)
            assert measure_alignment(record, "team", agent, [*SHARED]) == pytest.approx(cosine)
    assert measure_alignment(record, "team", "judge", ["judge"]) is None
    assert measure_alignment({}, "team", "judge", [*SHARED]) is None


@pytest.mark.parametrize(
    ("direction", "reward", "captured"),
    [
        (-1.0, fall(0.8, 0.4), True),
        (1.0, fall(0.8, 0.4), False),  # it falls, and the updates are not to blame
        (-1.0, [0.4 + 0.02 * n for n in range(20)], False),  # it rises in spite of them
    ],
)
def test_a_role_whose_gradient_is_outweighed_loses_the_weights(direction, reward, captured):
    random, records = np.random.default_rng(0), steps(judge__reward=reward, writer__reward=FLAT)
    for record in records:
        writer = np.array([5.0, 0.0]) + 0.2 * random.normal(size=2)
        judge = np.array([direction, 0.3]) + 0.2 * random.normal(size=2)
        record |= norms(writer=writer, judge=judge)
    alarms = find_alarms(records, SHARED)
    assert [(alarm.kind, alarm.agent) for alarm in alarms] == [("captured", "judge")] * captured
    for alarm in alarms:
        assert "to writer, which has 8" in alarm.text
        assert "team.judge.policy" in alarm.text
    assert find_alarms(records, {"writer": "writer", "judge": "judge"}) == []


@pytest.mark.slow
def test_a_run_reports_an_alarm_once_and_shows_it(model_folder, tmp_path, capsys):
    """The first steps of a real run are rewritten, so that an agent seems to have said more."""
    options = {"evaluation": {"tasks": 0}, "trainer": {"steps": 8}}
    config = relay_config(model_folder, **options)
    for agent in config["team"].values():  # answers that end
        agent["sampling"] = {"max_tokens": 8, "stop": ["a", "e", "i", "o", "s", "t"]}
    path, run = write(tmp_path / "team.yaml", config), tmp_path / "run"
    assert rolecall("train", path, "--output", run, capsys=capsys)[0] == 0
    records = RunFolder(run).read_metrics()
    for record in records:
        if record["kind"] == "step":
            record["agent/last/tokens"] = 100.0 if record["step"] < 7 else 60.0
    lines = "".join(json.dumps(record) + "\n" for record in records)
    RunFolder(run).metrics.write_text(lines)
    for steps_more, raised in ((14, 1), (15, 0)):
        more = f"trainer.steps={steps_more}"
        status, out, error = rolecall("train", run, more, capsys=capsys)
        assert status == 0, error
        assert out.count("agent last writes less and less") == raised
    [alarm] = json.loads((run / "summary.json").read_text())["alarms"]
    assert alarm["agent"] == "last"
    assert "agent last writes less and less" in (run / "report.html").read_text()
    out = rolecall("show", run, capsys=capsys)[1]
    assert out.count(f"! step {alarm['step']}: agent last writes less and less") == 1
