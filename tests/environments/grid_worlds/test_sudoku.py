"""Sudoku: digits that break a rule are refused, and progress is the share of right cells."""

from __future__ import annotations

import asyncio

import pytest

from rolecall.environments.grid_worlds.puzzle import UNREADABLE, PuzzleWorld
from rolecall.environments.grid_worlds.sudoku import (
    Sudoku,
    SudokuEnvironment,
    read_grid,
    show,
    solve,
)

SOLUTION = "1234\n3412\n2143\n4321"
BOARD = ".234\n34.2\n2143\n4.2."


def world() -> PuzzleWorld:
    return PuzzleWorld(Sudoku(read_grid(BOARD), read_grid(SOLUTION)))


def step(opened, answer):
    return asyncio.run(opened.step("planner", f"<answer>{answer}</answer>"))


def test_right_digits_are_filled_in_and_each_is_a_part_of_the_way():
    opened = world()
    seen = step(opened, "[[1,1,1],[2,3,1]]")
    assert (seen.team, seen.reward, seen.done) == (0.5, 0.5, False)
    assert seen.text == "1234\n3412\n2143\n4.2."
    assert step(opened, "[[4,2,3],[4,4,1]]").done


def test_all_rows_of_the_board_are_an_answer_too():
    rows = "[[1,2,3,4],[3,4,1,2],[2,1,4,3],[4,3,2,1]]"
    seen = step(world(), rows)
    assert (seen.team, seen.reward, seen.done) == (1.0, 1.0, True)
    assert step(world(), rows.replace("[1,2", "[0,2")).team == 0.75, "0 leaves a cell empty"


def test_a_digit_that_breaks_a_rule_and_a_given_cell_are_refused():
    opened = world()
    seen = step(opened, "[[1,1,2],[1,2,1],[2,3,1]]")
    assert seen.text.startswith(
        "Refused, because a rule forbids it or the cell was given: [1,1,2], [1,2,1]."
    )
    assert (seen.team, seen.reward) == (0.25, pytest.approx(0.15))
    assert show(opened.puzzle.grid) == ".234\n3412\n2143\n4.2."


def test_a_wrong_digit_that_no_rule_forbids_yet_can_be_replaced():
    grid = "....\n....\n2143\n4321"
    opened = PuzzleWorld(Sudoku(read_grid(grid), read_grid(SOLUTION)))
    assert step(opened, "[[1,1,3]]").team == 0.0
    assert step(opened, "[[1,1,1]]").team == pytest.approx(1 / 8)


@pytest.mark.parametrize(
    "answer", ["", "1,1,1", "[1,1,1]", "[]", "[[1,1]]", "[[0,1,1]]", "[[1,1,5]]", '[["1",1,1]]']
)
def test_an_answer_that_cannot_be_read_changes_nothing(answer):
    seen = step(world(), answer)
    assert seen.text == f"{UNREADABLE}\n{BOARD}"
    assert (seen.team, seen.reward) == (0.0, -0.1)


@pytest.mark.parametrize(("size", "blanks", "number"), [(4, 3, 60), (4, 8, 60), (9, 40, 4)])
def test_every_board_has_one_solution_and_none_is_in_both_splits(size, blanks, number):
    environment = SudokuEnvironment(size=size, blanks=blanks)
    boards = {}
    for split in ("train", "test"):
        tasks = environment.tasks(split)[:number]
        boards[split] = {task.info["board"] for task in tasks}
        for task in tasks:
            grid = read_grid(task.info["board"])
            assert task.info["board"].count(".") == blanks
            assert [show(found) for found in solve(grid)] == [task.info["solution"]]
            opened = environment.open(task, seed=0)
            assert step(opened, opened.puzzle.best_fills()).team == 1.0
    assert not boards["train"] & boards["test"]


def test_a_board_with_several_solutions_has_all_of_them_found():
    assert len(list(solve(read_grid("....\n....\n2143\n4321")))) == 4
    assert list(solve(read_grid("1.34\n2...\n....\n...."))) == []


def test_a_fork_goes_its_own_way():
    opened = world()
    fork = asyncio.run(opened.fork())
    step(fork, "[[1,1,1]]")
    assert show(opened.puzzle.grid) == BOARD
    assert fork.puzzle.blanks == opened.puzzle.blanks
