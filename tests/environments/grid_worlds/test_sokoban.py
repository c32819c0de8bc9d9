"""Sokoban: boxes are pushed, never pulled, and a box in a corner ends the episode."""

from __future__ import annotations

import asyncio

import pytest

from rolecall.environments.grid_worlds.puzzle import PuzzleWorld
from rolecall.environments.grid_worlds.sokoban import SokobanEnvironment, read_board

BOARD = ["######", "#P...#", "#.$..#", "#...T#", "#....#", "######"]


def world(board=BOARD) -> PuzzleWorld:
    return PuzzleWorld(read_board(board))


def step(opened, moves):
    return asyncio.run(opened.step("planner", f"<answer>{moves}</answer>"))


def test_a_pushed_box_moves_and_the_way_it_has_left_is_the_progress():
    """The box is three cells from its target; one push leaves two."""
    opened = world()
    seen = step(opened, "D,R")
    assert seen.text == "######\n#....#\n#.P$.#\n#...T#\n#....#\n######"
    assert (seen.team, seen.reward) == (pytest.approx(1 / 3), pytest.approx(1 / 3))
    assert not seen.done
    assert step(opened, "R").team == pytest.approx(2 / 3)
    assert step(opened, "U,R,D").done
    assert opened.puzzle.progress() == 1.0
    assert opened.puzzle.view() == "######\n#....#\n#...P#\n#...*#\n#....#\n######"


def test_a_box_that_is_left_in_a_corner_ends_the_episode_unsolved():
    opened = world(["######", "#....#", "#.$P.#", "#...T#", "#....#", "######"])
    seen = step(opened, "L")
    assert (seen.team, seen.done) == (0.0, False), "at a wall, and no corner"
    seen = step(opened, "U,L,D,D,R")
    assert (seen.team, seen.done) == (0.0, True)
    assert opened.puzzle.view().split("\n")[4] == "#$...#"


def test_a_push_against_a_wall_or_another_box_ends_the_list_of_moves():
    against_wall = world(["#####", "#T..#", "#P$.#", "#...#", "#####"])
    assert "Move 2 (R) was blocked" in step(against_wall, "R,R,U").text
    assert against_wall.puzzle.worker == (2, 2)
    against_box = world(["######", "#T..T#", "#P$$.#", "#....#", "#....#", "######"])
    seen = step(against_box, "R")
    assert "Move 1 (R) was blocked" in seen.text
    assert seen.reward == -0.1


def test_boxes_have_targets_of_their_own():
    """Both boxes are one from the right target; the sum is what counts."""
    board = ["######", "#T$..#", "#....#", "#.$T.#", "#...P#", "######"]
    opened = world(board)
    assert opened.puzzle.first == 2
    step(opened, "U,U,L")
    assert opened.puzzle.progress() == 0.0


def test_symbols_are_read_as_they_are_shown():
    board = ["#####", "#*+.#", "#.$.#", "#...#", "#####"]
    assert world(board).puzzle.view() == "\n".join(board)


@pytest.mark.parametrize("options", [{"pulls": 4}, {"boxes": 2, "walls": 2}, {"size": 5}])
def test_every_board_can_be_solved_and_none_is_in_both_splits(options):
    environment = SokobanEnvironment(**options)
    boards = {}
    for split in ("train", "test"):
        tasks = environment.tasks(split)[:80]
        boards[split] = {task.info["board"] for task in tasks}
        for task in tasks:
            opened = environment.open(task, seed=0)
            assert opened.puzzle.progress() < 1.0
            assert step(opened, ",".join(opened.puzzle.best_moves())).team == 1.0
    assert not boards["train"] & boards["test"]


def test_a_fork_goes_its_own_way():
    opened = world()
    fork = asyncio.run(opened.fork())
    step(fork, "D,R")
    assert opened.puzzle.view() == "\n".join(BOARD)


def test_a_board_without_room_is_refused():
    with pytest.raises(ValueError, match="size is 5: 3 boxes and 3 walls need"):
        SokobanEnvironment(size=5, boxes=3, walls=3)
