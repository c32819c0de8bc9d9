"""What the metrics of a step show to be wrong, and which key is named for it."""

from __future__ import annotations

import pytest

from rolecall.monitor.advice import Problem, check_step, find_problems

CONFIG = {
    "team": {
        "solver": {"policy": "small", "trainable": True, "sampling": {"max_tokens": 100}},
        "judge": {"policy": "big", "trainable": False, "sampling": {"max_tokens": 10}},
    },
    "rewards": {"correct": 1.0},
    "rollout": {"group_size": 8, "timeout_s": 600.0, "carry": 0},
    "trainer": {"max_staleness": 0},
}
POLICIES = {"solver": "small"}
HEALTHY = {
    "kind": "step", "step": 7, "score": 0.5, "rollout/episodes": 64.0, "rollout/failures": 0.0,
    "rollout/stale_groups": 0.0, "policy/small/grad_norm": 0.3, "policy/small/skipped": 0.0,
    "agent/solver/turns": 2.0, "agent/solver/tokens": 40.0, "agent/solver/truncated": 0.0,
    "agent/solver/invalid": 0.0, "agent/solver/zero_signal": 0.4,
    "agent/solver/mismatch_mean": 1e-6, "agent/solver/mismatch_outside": 0.0,
}  # fmt: skip


def problems_with(config: dict | None = None, **changes: object) -> list[Problem]:
    record = {name: value for name, value in (HEALTHY | changes).items() if value is not None}
    return check_step([record], CONFIG | (config or {}), POLICIES)


def test_a_healthy_step_has_no_problem():
    assert problems_with() == []
    assert find_problems([], CONFIG, POLICIES) == []


@pytest.mark.parametrize(
    ("changes", "kind", "key", "query"),
    [
        (
            {"rollout/failures": 2.0, "failures/TimeoutError": 2.0},
            "failed", "rollout.timeout_s=1200", "error:yes step:7",
        ),
        ({"rollout/stale_groups": 3.0}, "stale", "trainer.max_staleness=1", ""),
        ({"rollout/tool_calls": 6.0, "rollout/tool_raised": 4.0}, "tools", "", ""),
        ({"policy/small/skipped": 1.0}, "skipped", "", ""),
        ({"policy/small/grad_norm": None}, "no signal", "", ""),
        # 80 tokens a turn, 1 of 5 cut: one turn ends in 100 tokens; ln 20 of that are 299.6.
        (
            {"agent/solver/truncated": 0.2, "agent/solver/tokens": 160.0},
            "truncated", "team.solver.sampling.max_tokens=300", "agent:solver finish:length step:7",
        ),
        (
            {"agent/solver/truncated": 1.0, "agent/solver/invalid": 1.0},
            "truncated", "team.solver.sampling.max_tokens=400", "agent:solver finish:length step:7",
        ),
        (
            {"agent/solver/invalid": 0.3},
            "invalid", "rewards.format=0.2", "agent:solver valid:no step:7",
        ),
        (
            {"agent/solver/zero_signal": 0.95},
            "no signal", "rollout.group_size=16", "agent:solver step:7",
        ),
        (
            {"agent/solver/zero_signal": 1.0, "score": 0.01},
            "no signal", "trainer.warm_start=10", "agent:solver step:7",
        ),
        ({"agent/solver/mismatch_mean": 0.03}, "mismatch", "learner.dtype=float32", ""),
        ({"agent/solver/mismatch_outside": 0.02}, "mismatch", "learner.dtype=float32", ""),
    ],
)  # fmt: skip
def test_one_thing_that_is_wrong_is_named_with_the_key_to_change(changes, kind, key, query):
    [problem] = problems_with(**changes)
    assert (problem.kind, problem.key, problem.query, problem.step) == (kind, key, query, 7)


def test_a_config_of_another_version_may_lack_any_key():
    record = HEALTHY | {"agent/solver/truncated": 0.2, "rollout/stale_groups": 1.0}
    record |= {"rollout/failures": 1.0, "failures/TimeoutError": 1.0}
    assert len(check_step([record], {}, POLICIES)) == 3


def test_keys_that_are_set_are_not_suggested_again():
    [problem] = problems_with({"rewards": {"format": 0.2}}, **{"agent/solver/invalid": 0.3})
    assert problem.key == ""


def test_a_team_that_solves_everything_is_told_so():
    [problem] = problems_with(**{"agent/solver/zero_signal": 1.0, "score": 1.0})
    assert "100% of the attempts are right: use harder tasks" in problem.text
    assert problem.key == ""


def test_the_mismatch_of_stale_turns_is_drift():
    stale = {"trainer": {"max_staleness": 2}}
    [problem] = problems_with(stale, **{"agent/solver/mismatch_mean": 0.03})
    assert (problem.severity, problem.key) == ("note", "trainer.max_staleness=1")


def test_few_failed_calls_of_tools_are_usual():
    assert problems_with(**{"rollout/tool_calls": 95.0, "rollout/tool_raised": 5.0}) == []


def test_a_gradient_is_measured_from_the_steps_before():
    steps = [HEALTHY | {"step": step} for step in range(1, 5)]
    high = HEALTHY | {"step": 5, "policy/small/grad_norm": 3.0}
    [problem] = check_step([*steps, high], CONFIG, POLICIES)
    assert (problem.kind, problem.view) == ("spike", "spikes")
    assert "10 times the median" in problem.text
    assert check_step([*steps[:2], high], CONFIG, POLICIES) == [], (
        "two steps say nothing of what is usual"
    )
    assert check_step([*steps, high | {"policy/small/grad_norm": 1.4}], CONFIG, POLICIES) == []


def test_the_worst_comes_first_and_alarms_are_among_them():
    """The solver falls silent while a second trained agent keeps on."""
    steps = [
        HEALTHY
        | {"step": n, "agent/other/tokens": 40.0, "agent/other/turns": 2.0}
        | {"agent/solver/tokens": 40.0 if n < 12 else 4.0, "rollout/failures": float(n == 24)}
        | {"rollout/episodes": 0.0 if n == 24 else 64.0}
        for n in range(1, 25)
    ]
    problems = find_problems(steps, CONFIG, POLICIES | {"other": "own"})
    assert [problem.severity for problem in problems] == ["error", "warning"]
    assert problems[1].kind == "lazy"
    assert problems[1].query == f"agent:solver step:{problems[1].step}"
