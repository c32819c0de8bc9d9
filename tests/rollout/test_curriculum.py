"""Pass rates after known episodes, as of the step that a draw may know."""

from __future__ import annotations

import json

import pytest

from rolecall.config.schema import CurriculumConfig
from rolecall.core.types import Episode, Task
from rolecall.rollout.curriculum import PassRates


def rates(*, lag: int = 0, **options) -> PassRates:
    return PassRates(CurriculumConfig(**options), lag=lag)


def episodes(task: str, *scores: float, error: str | None = None) -> list[Episode]:
    made = Task(task, "?", None, {"source": "s", "family": "f"})
    return [
        Episode(f"{task}:{n}", made, n, 0, scores={"team": score}, error=error)
        for n, score in enumerate(scores)
    ]


def test_a_pass_rate_moves_from_the_prior_towards_each_steps_mean():
    known = rates()
    known.update(1, [*episodes("x", 1, 1, 1, 0), *episodes("y", 0, 0)])
    known.update(2, episodes("x", 1, 1, 1, 1))
    assert known.rate("x", step=3) == 0.8125  # .5 -> .625 -> .8125
    assert known.rate("y", step=3) == 0.25
    assert known.rate("never tried", step=3) == 0.5
    assert known.weight("x", step=3) == 0.8125 * 0.1875 + 0.05


def test_prior_newest_and_floor_are_what_the_config_says():
    known = rates(prior=0.2, newest=1.0, floor=0.01)
    assert known.weight("x", step=1) == pytest.approx(0.2 * 0.8 + 0.01)
    known.update(1, episodes("x", 1, 1))
    assert known.weight("x", step=2) == 0.01


def test_an_error_is_no_failed_attempt_and_scores_stay_within_0_and_1():
    known = rates(newest=1.0)
    broken = episodes("x", 0, 0, error="ConnectionError: gone")
    known.update(1, [*broken, *episodes("x", 1.0, 1.0), *episodes("y", -3.0, 7.0)])
    assert (known.rate("x", step=2), known.rate("y", step=2)) == (1.0, 0.5)


@pytest.mark.parametrize(("by", "key"), [("task", "x"), ("source", "f/s"), ("family", "f")])
def test_tasks_share_the_rate_of_what_it_is_kept_by(by, key):
    known = rates(by=by, newest=1.0)
    known.update(1, [*episodes("x", 1, 1, 1), *episodes("y", 0)])
    assert known.key(episodes("x", 1)[0].task) == key
    assert known.rate(key, step=2) == (1.0 if by == "task" else 0.75)


def test_a_draw_ahead_knows_only_the_steps_before_its_bound():
    """With lag 1 the draw for step 4 knows steps 1 and 2, also once step 3 is finished."""
    known = rates(lag=1, newest=1.0)
    known.update(1, episodes("x", 1))
    known.update(2, episodes("x", 0))
    early = known.rate("x", step=4)
    known.update(3, episodes("x", 1))
    assert known.rate("x", step=4) == early == 0.0
    assert known.rate("x", step=5) == 1.0
    assert sorted(known.known) == [2, 3]  # steps 1 to 3 are drawn and over


def test_rates_come_back_from_a_checkpoint_to_the_bit():
    known = rates(lag=2, newest=0.3)
    for step in range(1, 9):
        known.update(step, [*episodes("x", 1, 0, 0), *episodes(f"{step}", 1, 1, 0)])
    again = rates(lag=2, newest=0.3)
    again.load_state_dict(json.loads(json.dumps(known.state_dict())))
    assert again.known == known.known
    assert all(again.rate("x", step=s) == known.rate("x", step=s) for s in (9, 10, 11))
