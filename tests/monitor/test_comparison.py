"""The first evaluation is compared with the last, by source."""

import math

from rolecall.monitor.comparison import compare
from rolecall.monitor.live import evaluation_line
from tests.monitor.runs_for_tests import evaluation_record, step_record


def test_before_and_after_come_by_metric_and_source():
    first, last = evaluation_record(0, "before", 0.1), evaluation_record(9, "after", 0.5)
    found = compare([first, step_record(1), evaluation_record(5, "during", 0.3), last])
    assert [(c.metric, c.part) for c in found] == [
        (metric, source) for metric in ("avg@8", "pass@8") for source in ("", "add", "word")
    ]
    whole = found[0]
    assert (whole.before.mean, whole.after.mean, whole.num_tasks) == (0.1, 0.5, 210)
    assert math.isclose(whole.gain.mean, 0.4)
    assert math.isclose(whole.gain.margin, math.hypot(0.031, 0.031))


def test_families_of_a_mixture_come_before_sources():
    first, last = (
        evaluation_record(step, "x", mean) | {"by_family": {"b": {"avg@8": mean}, "a": {}}}
        for step, mean in ((0, 0.1), (9, 0.5))
    )
    found = [change for change in compare([first, last]) if change.metric == "avg@8"]
    assert [change.part for change in found] == ["", "a", "b", "add", "word"]
    assert found[1].before is None
    assert found[2].after.mean == 0.5


def test_one_evaluation_has_no_after_and_none_has_nothing():
    [whole, *_] = compare([evaluation_record(0, "before", 0.1)])
    assert whole.after is None
    assert whole.gain is None
    assert compare([step_record(1)]) == []


def test_a_single_task_has_no_margin():
    record = {"kind": "evaluation", "avg@8": 0.5, "avg@8_margin": None, "num_tasks": 1}
    [change] = compare([record, {**record, "avg@8": 0.75}])
    assert change.gain is not None
    assert change.gain.margin is None
    assert str(change.gain) == "0.250 +- n/a"
    assert "avg@8 0.500 +- n/a (1 tasks)" in evaluation_line({**record, "when": "before"})
