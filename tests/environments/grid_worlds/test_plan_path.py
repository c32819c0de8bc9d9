"""Plan-path: moves are walked until a wall or the goal, and progress is the way that is done."""

from __future__ import annotations

import asyncio

import pytest

from rolecall.core.types import Episode
from rolecall.environments.grid_worlds.plan_path import PlanPath, PlanPathEnvironment
from rolecall.environments.grid_worlds.puzzle import UNREADABLE, PuzzleWorld, read_moves

# From P five steps lead to G, around the wall: D, D, R, R, U.
GRID = ["P#.", ".#G", "..."]


def world() -> PuzzleWorld:
    return PuzzleWorld(PlanPath(GRID))


def step(opened, answer):
    return asyncio.run(opened.step("planner", f"So.\n<answer>{answer}</answer>"))


def score(opened):
    episode = Episode("0", None, 0, 0, [])
    return asyncio.run(opened.score(episode))["team"], episode.metrics["progress"]


def test_the_way_to_the_goal_solves_the_grid():
    opened = world()
    seen = step(opened, "D,D,R,R,U")
    assert (seen.team, seen.reward, seen.done) == (1.0, 1.0, True)
    assert score(opened) == (1.0, 1.0)


def test_a_part_of_the_way_earns_its_share_and_the_team_sees_where_it_stands():
    opened = world()
    seen = step(opened, "D,D")
    assert (seen.team, seen.reward, seen.done) == (pytest.approx(0.4), pytest.approx(0.4), False)
    assert seen.text.split("\n")[-3:] == [".#.", ".#G", "P.."]
    assert step(opened, "U").reward == pytest.approx(-0.2)
    assert score(opened) == (0.0, pytest.approx(0.2))


@pytest.mark.parametrize(("moves", "number"), [("D,R,D", 2), ("U", 1), ("D,D,D", 3)])
def test_a_wall_or_the_edge_ends_the_list_of_moves_and_costs_a_tenth(moves, number):
    walked = number - 1
    seen = step(world(), moves)
    assert f"Move {number} " in seen.text
    assert seen.team == pytest.approx(walked / 5)
    assert seen.reward == pytest.approx(walked / 5 - 0.1)


def test_moves_behind_the_goal_are_not_walked():
    assert step(world(), "D,D,R,R,U,U,U,U").team == 1.0


@pytest.mark.parametrize("answer", ["", "go down", "D,D;rm", "1,2"])
def test_an_answer_that_cannot_be_read_changes_nothing_and_costs_a_tenth(answer):
    opened = world()
    seen = step(opened, answer)
    assert seen.text.startswith(UNREADABLE)
    assert (seen.team, seen.reward, seen.done) == (0.0, -0.1, False)
    assert asyncio.run(opened.step("planner", "D,D,R,R,U")).reward == -0.1, "without the tags"


def test_moves_are_read_in_several_forms():
    assert read_moves('["U", "r"]') == read_moves("U,R") == read_moves("u r") == ["U", "R"]


def test_a_fork_goes_its_own_way():
    opened = world()
    fork = asyncio.run(opened.fork())
    step(fork, "D,D")
    assert opened.puzzle.view() == PlanPath(GRID).view() != fork.puzzle.view()
    asyncio.run(opened.become(fork))
    assert step(opened, "R,R,U").done


def test_every_grid_can_be_walked_and_none_is_in_both_splits():
    environment = PlanPathEnvironment(size=4, walls=3)
    boards = {}
    for split in ("train", "test"):
        tasks = environment.tasks(split)[:150]
        assert tasks == environment.tasks(split)[:150]
        boards[split] = {task.info["board"] for task in tasks}
        for task in tasks:
            opened = environment.open(task, seed=0)
            assert sum(row.count("#") for row in task.info["board"].split()) == 3
            assert step(opened, ",".join(opened.puzzle.best_moves())).team == 1.0
    assert not boards["train"] & boards["test"]


def test_more_walls_than_half_of_the_cells_are_refused():
    with pytest.raises(ValueError, match="walls is 9; at most half of the cells"):
        PlanPathEnvironment(size=4, walls=9)
