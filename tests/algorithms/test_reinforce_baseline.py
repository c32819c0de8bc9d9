"""A moving average for each source and seat: read before it is moved, kept across steps."""

from __future__ import annotations

import json
import random

import pytest

from rolecall.algorithms.grpo import Grpo
from rolecall.algorithms.reinforce_baseline import ReinforceBaseline
from rolecall.core.types import Episode
from tests.algorithms.small import said, singles
from tests.toy import episode, turn


def game(number: int, first: str, second: str, won: float, *, source: str = "kuhn") -> Episode:
    """`first` sits in seat 0, and wins what `second` loses."""
    turns = []
    for seat, agent in enumerate((first, second)):
        one = turn(agent, episode=f"x:{number}", path=(seat,))
        one.seat = str(seat)
        turns.append(one)
    made = episode(number, turns, {first: won, second: -won})
    made.task.info["source"] = source
    return made


def step(algorithm: ReinforceBaseline, episodes: list[Episode]) -> list[float]:
    """Advantages of all turns; then the step ends."""
    algorithm.credit(episodes)
    algorithm.after_step(1)
    return [float(t.advantages[0]) for e in episodes for t in e.turns]


def test_known_answer_of_payoffs_against_the_average_before_them():
    """Averages 0, .5, .75 and then -.125, which the next step finds."""
    algorithm = ReinforceBaseline(decay=0.5)
    assert step(algorithm, singles([1, 1, -1])) == [1.0, 0.5, -1.75]
    assert step(algorithm, singles([1])) == [1.125]


def test_the_default_is_the_published_one():
    algorithm = ReinforceBaseline()
    assert (algorithm.decay, algorithm.min_group) == (0.95, 1)
    assert step(algorithm, singles([1.0])) == [1.0]
    assert step(algorithm, singles([1.0])) == pytest.approx([0.95])
    assert step(algorithm, singles([1.0])) == pytest.approx([0.95**2])


def test_a_constant_payoff_is_worth_nothing_in_the_limit():
    algorithm = ReinforceBaseline()
    last = [step(algorithm, singles([0.9] * 8))[-1] for _ in range(50)]
    assert last[0] == pytest.approx(0.9 * 0.95**7)
    assert abs(last[-1]) < 1e-8


def test_each_seat_of_each_game_has_an_average_of_its_own_whoever_sits_there():
    algorithm = ReinforceBaseline(decay=0.5)
    step(algorithm, [game(0, "ann", "ben", 1.0)])
    assert algorithm.metrics() == {"average/kuhn/0": 0.5, "average/kuhn/1": -0.5}
    assert step(algorithm, [game(1, "ben", "ann", 1.0)]) == [0.5, -0.5]
    assert step(algorithm, [game(2, "ann", "ben", 1.0, source="chess")]) == [1.0, -1.0]


def test_a_group_mean_knows_nothing_of_a_seats_luck():
    """Who sits first always loses 1: not its fault, nor to the credit of who sits second."""
    episodes = [game(i, "ann", "ben", -1.0) for i in range(8)]
    pooled = Grpo()
    pooled.credit(episodes)
    assert said(episodes, "ann") == pytest.approx([-0.968246] * 8, abs=1e-5)
    algorithm = ReinforceBaseline()
    for _ in range(40):
        step(algorithm, episodes)
    assert said(episodes, "ann") == pytest.approx([0.0] * 8, abs=1e-5)
    assert said(episodes, "ben") == pytest.approx([0.0] * 8, abs=1e-5)


def test_turns_of_one_game_share_the_average_before_it_and_move_it_once():
    turns = [turn(path=(k,), rewards={"invalid": -1.0} if k == 0 else {}) for k in range(2)]
    algorithm = ReinforceBaseline(decay=0.5)
    assert step(algorithm, [episode(0, turns, {"team": 1.0})]) == [0.0, 1.0]
    assert algorithm.metrics() == {"average//solver": 0.25}  # half of the mean of 0 and 1


def test_a_resumed_run_goes_on_exactly_and_an_unfinished_step_leaves_no_trace():
    straight, stopped = ReinforceBaseline(), ReinforceBaseline()
    draw = random.Random(0)
    steps = [[game(i, "ann", "ben", draw.uniform(-2, 2)) for i in range(4)] for _ in range(4)]
    for episodes in steps[:2]:
        step(straight, episodes)
        step(stopped, episodes)
    stopped.credit(steps[2])  # and the machine stops
    resumed = ReinforceBaseline()
    resumed.load_state_dict(json.loads(json.dumps(stopped.state_dict())))
    for episodes in steps[2:]:
        assert step(resumed, episodes) == step(straight, episodes)
    assert resumed.state_dict() == straight.state_dict()
