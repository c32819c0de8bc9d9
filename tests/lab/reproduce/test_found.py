"""Means over seeds, spikes of gradient norms, and what a run came to, by hand."""

from __future__ import annotations

import math

import pytest
from scipy import stats

from rolecall_lab.reproduce.found import RunFound, largest_over_median, spikes
from rolecall_lab.seeds import MOST_SEEDS, over_seeds


def test_an_interval_is_students():
    found = over_seeds([1.0, 2.0, 3.0])
    assert found.mean == 2.0
    assert found.margin == pytest.approx(4.303 / math.sqrt(3), abs=1e-3)
    assert str(found) == "2.0 +- 2.5"
    assert f"{found:.3f}" == "2.000 +- 2.484"
    assert (found.low, found.high) == pytest.approx((-0.484, 4.484), abs=1e-3)
    assert str(over_seeds([61.25])) == "61.2"


@pytest.mark.parametrize("number", range(2, MOST_SEEDS + 1))
def test_every_number_of_seeds_has_its_own_interval(number):
    values = [float(n * n) for n in range(number)]
    low, high = stats.t.interval(0.95, number - 1, loc=0.0, scale=stats.sem(values))
    assert over_seeds(values).margin == pytest.approx((high - low) / 2, rel=1e-3)


@pytest.mark.parametrize(
    ("norms", "number", "largest"),
    [
        ([1.0, 1.0, 1.0, 3.0], 0, 3.0),  # three times is not above three times
        ([1.0, 1.0, 1.0, 3.1], 1, 3.1),
        ([1.0, 9.0, 1.0, math.nan], 2, math.inf),
        ([2.0, 2.0, math.inf], 1, math.inf),
        ([0.0, 0.0, 0.0], 0, 0.0),
        ([], 0, math.inf),
    ],
)
def test_a_spike_is_above_three_medians_of_its_run(norms, number, largest):
    assert spikes(norms) == number
    assert largest_over_median(norms) == largest


def evaluation() -> dict:
    return {
        "avg@4": 0.9,
        "pass@4": 1.0,
        "avg@4_margin": 0.02,
        "over_sources": {"avg@4": 0.5, "pass@4": 0.75, "avg@4_margin": 0.01},
        "by_source": {"easy": {"avg@4": 0.9, "pass@4": 1.0}, "hard": {"avg@4": 0.1, "pass@4": 0.5}},
        "num_tasks": 5,
        "time/latency_s/a": 0.5,
        "time/latency_s/b": 2.0,
        "cost": {
            "usd": 0.25,
            "by_agent": {
                "a": {"turns": 40, "prompt_tokens": 300, "sampled_tokens": 100},
                "b": {"turns": 10, "prompt_tokens": 50, "sampled_tokens": 10},
            },
        },
    }


def test_a_run_is_read_from_its_evaluation_and_its_steps():
    steps = [
        {"score": 0.25, "agent/a/grad_norm": 1.0, "agent/b/grad_norm": 2.0},
        {"score": 0.5, "agent/a/grad_norm": 3.0},
    ]
    found = RunFound.from_evaluation(7, evaluation(), steps)
    assert (found.average, found.passed, found.margin) == (50.0, 75.0, 1.0)
    assert found.by_source == {"easy": (90.0, 100.0), "hard": (10.0, 50.0)}
    assert found.seconds == (0.5 * 40 + 2.0 * 10) / 20
    assert found.tokens == {"a": 20.0, "b": 3.0}
    assert found.usd == 0.25
    assert found.scores == [0.25, 0.5]
    assert found.norms == {"a": [1.0, 3.0], "b": [2.0]}


def test_one_benchmark_is_its_own_average():
    plain = evaluation()
    del plain["over_sources"]
    assert RunFound.from_evaluation(0, plain, []).average == 90.0
