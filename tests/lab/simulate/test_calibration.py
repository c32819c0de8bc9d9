"""What a run's records say of its engine and its learner, where the truth is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from rolecall.storage.episode_io import write_parquet
from rolecall_lab.simulate.calibration import calibrate, fit_learner, non_negative, steady
from rolecall_lab.simulate.costs import Costs, EngineCosts, LearnerCosts, line
from rolecall_lab.simulate.records import read_groups
from rolecall_lab.simulate.rounds import rounds
from rolecall_lab.simulate.run import Placement, Simulation
from tests.lab.simulate.runs_for_tests import STEPS, TRUE, played, simulated
from tests.toy import episode, turn

UNKNOWN = Costs(EngineCosts(line(0.0, 0.0)), LearnerCosts(0.0))


@pytest.fixture(scope="module")
def steps(tmp_path_factory):
    folder = tmp_path_factory.mktemp("episodes")
    for number in range(1, STEPS + 1):
        write_parquet(folder / f"{number}.parquet", played(number), step=number)
    return [read_groups(folder / f"{number}.parquet") for number in range(1, STEPS + 1)]


def engine_values(costs: Costs) -> list[float]:
    engine = costs.engine
    return [*engine.passes[0], *engine.passes[1], engine.prompt_token_s, engine.episode_s]


def test_the_costs_behind_the_records_are_found(steps):
    placement = Placement(1, 1)
    found = calibrate(simulated(steps, placement), UNKNOWN, placement, concurrency=256)
    assert engine_values(found) == pytest.approx(engine_values(TRUE), rel=0.01)
    assert found.learner.token_s == pytest.approx(TRUE.learner.token_s)
    assert found.publish.seconds == pytest.approx(TRUE.publish.seconds)
    assert found.step_s == pytest.approx(TRUE.step_s, rel=0.01)


def test_requests_are_on_their_way_only_where_they_leave_the_process(steps):
    truth = replace(TRUE, request_s=0.2)
    for placement in (Placement(1, 1), Placement(1, 1, together=True)):
        measured = simulated(steps, placement, truth)
        found = calibrate(measured, UNKNOWN, placement, concurrency=256)
        assert (found.request_s > 0.05) is not placement.together
        again = Simulation(steps, found, placement, concurrency=256).run()
        assert again.whole_s == pytest.approx(sum(step.step_s for step in measured), rel=0.05)


@pytest.mark.parametrize("placement", [Placement(2, 2), Placement(1, 1, staleness=1)])
def test_what_was_calibrated_takes_as_long_as_the_run_did(steps, placement):
    """Also where requests come within a pass, so that passes must be found with their costs."""
    measured = simulated(steps, placement)
    found = calibrate(measured, UNKNOWN, placement, concurrency=256)
    again = Simulation(steps, found, placement, concurrency=256).run()
    assert sum(step.step_s for step in again.steps) == pytest.approx(
        sum(step.step_s for step in measured), rel=0.05
    )


def test_an_old_run_without_times_of_episodes_is_fitted_to_its_rollouts(steps):
    placement = Placement(1, 1)
    measured = [replace(step, walls={}) for step in simulated(steps, placement)]
    found = calibrate(measured, UNKNOWN, placement, concurrency=256)
    again = Simulation(steps, found, placement, concurrency=256).run()
    for one, other in zip(again.steps[1:], measured[1:], strict=True):
        assert one.step_s == pytest.approx(other.step_s, rel=0.1)


def test_an_updates_fixed_part_is_known_only_where_tokens_differ(steps):
    truth = replace(TRUE, learner=LearnerCosts(token_s=0.0002, fixed_s=3.0))
    alike = simulated(steps, Placement(1, 1), truth)
    unlike = simulated([groups[: 1 + number] for number, groups in enumerate(steps)],
                       Placement(1, 1), truth)  # fmt: skip
    assert fit_learner(alike, UNKNOWN.learner, 1).fixed_s == 0.0
    found = fit_learner(unlike, UNKNOWN.learner, 1)
    assert (found.token_s, found.fixed_s) == pytest.approx((0.0002, 3.0))


def test_weights_are_the_best_that_are_not_negative():
    columns = np.array([[1.0, 1.0], [2.0, 1.0], [3.0, 1.0]])
    assert non_negative(columns, np.array([3.0, 5.0, 7.0])) == pytest.approx([2.0, 1.0])
    assert non_negative(columns, np.array([1.0, 3.0, 5.0])) == pytest.approx([22 / 14, 0.0])
    assert list(non_negative(columns, np.array([-1.0, -1.0, -1.0]))) == [0.0, 0.0]


def test_the_first_steps_and_those_that_drain_are_left_out(steps):
    measured = simulated(steps, Placement(1, 1))
    assert [step.number for step in steady(measured, 0)] == [2, 3, 4]
    assert [step.number for step in steady(measured, 1)] == [3]
    assert [step.number for step in steady(measured[:1], 1)] == [1]


def test_prompts_are_told_apart_by_what_they_share(tmp_path):
    """[1, 1] is every prompt's, [5, 6] one task's; a second turn goes on from the first."""
    system = [1, 1]
    episodes = [
        episode(
            attempt,
            [
                turn(task=task, episode=f"{task}{attempt}", prompt=[*system, *own], tokens=[3, 4],
                     path=(0,), advantage=1.0),
                turn(task=task, episode=f"{task}{attempt}", tokens=[8], path=(1,), advantage=0.0,
                     prompt=[*system, *own, 3, 4, 90 + attempt, 9]),
            ],
            {}, task=task,
        )
        for task, own in (("x", [5, 6]), ("y", [7, 7, 7]))
        for attempt in range(2)
    ]  # fmt: skip
    write_parquet(tmp_path / "e.parquet", episodes, step=1)
    groups = read_groups(tmp_path / "e.parquet")
    assert [len(group) for group in groups] == [2, 2]
    [first], [second] = groups[0][0].rounds
    assert (first.own, first.shared, first.context, first.tokens) == (0, 2, 4, 2)
    assert (second.own, second.shared, second.context, second.tokens) == (2, 0, 8, 1)
    assert first.trained
    assert not second.trained, "its advantages are zero"
    assert groups[1][1].turns[0].shared == 3


@pytest.mark.parametrize(
    ("paths", "candidates", "wanted"),
    [
        ([(0,), (1,), (2,)], [None] * 3, [[0], [1], [2]]),
        ([(0,), (1, 0), (2, 0), (3,)], [None] * 4, [[0], [1, 2], [3]]),
        ([(0, 0), (0, 1), (1, 0)], [None] * 3, [[0, 2], [1]]),
        ([(0, 0), (0, 1), (1,)], [0, 1, None], [[0, 1], [2]]),
        ([(0, 0), (0, 1), (1, 0), (1, 1)], [0, 1, 0, 1], [[0, 1], [2, 3]]),
    ],
)
def test_calls_that_were_made_at_once_are_one_round(paths, candidates, wanted):
    assert rounds(paths, candidates) == wanted
