"""Poses boards of Sudoku with one solution, 4x4 or 9x9, to be filled in over several turns."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from math import isqrt
from random import Random
from typing import Literal

from rolecall.core.interfaces.environment import ENDLESS, World
from rolecall.core.json_types import JsonObject
from rolecall.core.types import Task
from rolecall.environments.grid_worlds.puzzle import Cell, PuzzleTasks, PuzzleWorld

Grid = list[list[int]]  # rows of digits; 0 is an empty cell
RULES = (
    "Fill each empty cell . so that no row, column or block of {block} x {block} has a digit "
    "twice. The digits are 1 to {size}. Write a JSON list of [row, column, digit], counted from 1, "
    "as in <answer>[[1,2,4],[3,1,2]]</answer>, or all rows of the board."
)


class SudokuEnvironment:
    """Boards of Sudoku, each with one solution.

    size: rows, columns and digits: 4 or 9.
    blanks: empty cells; by default 6 of a board of 4 and 40 of a board of 9.
    test_size: boards of the test split.
    """

    lone_workflow = "multi_turn"

    def __init__(
        self, size: Literal[4, 9] = 4, blanks: int | None = None, test_size: int = 200
    ) -> None:
        most = {4: 10, 9: 50}[size]
        self.size, self.blanks = size, {4: 6, 9: 40}[size] if blanks is None else blanks
        if not 1 <= self.blanks <= most:
            raise ValueError(f"blanks is {self.blanks}; a board of {size} has 1 to {most} of them")
        self.sizes = {"train": ENDLESS, "test": test_size}

    def tasks(self, split: str) -> Sequence[Task]:
        rules = RULES.format(size=self.size, block=isqrt(self.size))
        key = ("sudoku", self.size, self.blanks)
        return PuzzleTasks(split, self._draw, key=key, rules=rules, size=self.sizes[split])

    def _draw(self, random: Random) -> JsonObject:
        """Empty cells in a random order, each only if the solution stays the only one."""
        while True:
            solution = _full_grid(self.size, random)
            grid, num_blanks = [row[:] for row in solution], 0
            cells = [(r, c) for r in range(self.size) for c in range(self.size)]
            for row, column in random.sample(cells, len(cells)):
                if num_blanks == self.blanks:
                    break
                grid[row][column] = 0
                solutions = solve(grid)
                next(solutions)
                if next(solutions, None) is None:
                    num_blanks += 1
                else:
                    grid[row][column] = solution[row][column]
            if num_blanks == self.blanks:
                return {"board": show(grid), "solution": show(solution)}

    def open(self, task: Task, *, seed: int) -> World:
        return PuzzleWorld(Sudoku(read_grid(task.info["board"]), read_grid(task.info["solution"])))


class Sudoku:
    """A board under way. Cells that were given stay; a digit that breaks a rule is refused."""

    def __init__(self, grid: Grid, solution: Grid) -> None:
        self.grid, self.solution = [row[:] for row in grid], solution
        self.blanks = frozenset(empty_cells(grid))

    def view(self) -> str:
        return show(self.grid)

    def play(self, answer: str) -> str:
        refused = [fill for fill in self._read(answer) if not self._fill(*fill)]
        if not refused:
            return ""
        listed = ", ".join(f"[{r + 1},{c + 1},{digit}]" for r, c, digit in refused)
        return f"Refused, because a rule forbids it or the cell was given: {listed}."

    def _read(self, answer: str) -> list[tuple[int, int, int]]:
        """Return (row, column, digit) of each cell that changes, rows and columns from 0."""
        size = len(self.grid)
        rows = json.loads(answer)  # its error is a ValueError
        if not _is_table(rows):
            raise ValueError("an answer is a list of lists of whole numbers")
        if len(rows) == size and all(len(row) == size for row in rows):
            fills = [(r, c, d) for r, row in enumerate(rows) for c, d in enumerate(row) if d]
            return [(r, c, d) for r, c, d in fills if self.grid[r][c] != d]
        if not all(len(row) == 3 and min(row) >= 1 and max(row) <= size for row in rows):
            raise ValueError(f"a cell is [row, column, digit], each from 1 to {size}")
        return [(row - 1, column - 1, digit) for row, column, digit in rows]

    def _fill(self, row: int, column: int, digit: int) -> bool:
        if (row, column) not in self.blanks:
            return False
        before, self.grid[row][column] = self.grid[row][column], 0
        is_allowed = digit in allowed_digits(self.grid, (row, column))
        self.grid[row][column] = digit if is_allowed else before
        return is_allowed

    def progress(self) -> float:
        """Return the share of the empty cells that are filled as in the solution."""
        right = sum(self.grid[r][c] == self.solution[r][c] for r, c in self.blanks)
        return right / len(self.blanks)

    def is_lost(self) -> bool:
        return False

    def copy(self) -> Sudoku:
        other = Sudoku(self.grid, self.solution)
        other.blanks = self.blanks
        return other

    def best_fills(self) -> list[list[int]]:
        """Return [row, column, digit] of each cell that is not as in the solution, from 1."""
        return [
            [r + 1, c + 1, self.solution[r][c]]
            for r, c in sorted(self.blanks)
            if self.grid[r][c] != self.solution[r][c]
        ]


def _is_table(rows: object) -> bool:
    return (
        isinstance(rows, list)
        and bool(rows)
        and all(isinstance(row, list) and row for row in rows)
        and all(type(number) is int for row in rows for number in row)
    )


def allowed_digits(grid: Grid, cell: Cell) -> list[int]:
    """Return the digits that row, column and block leave to an empty cell."""
    size, block = len(grid), isqrt(len(grid))
    row, column = cell
    top, side = row - row % block, column - column % block
    seen = {*grid[row], *(other[column] for other in grid)}
    seen |= {digit for other in grid[top : top + block] for digit in other[side : side + block]}
    return [digit for digit in range(1, size + 1) if digit not in seen]


def empty_cells(grid: Grid) -> list[Cell]:
    return [(r, c) for r, row in enumerate(grid) for c, digit in enumerate(row) if digit == 0]


def solve(grid: Grid) -> Iterator[Grid]:
    """Yield the solutions of a board one by one, the cell with fewest allowed digits first."""
    options = {cell: allowed_digits(grid, cell) for cell in empty_cells(grid)}
    if not options:
        yield grid
        return
    row, column = min(options, key=lambda cell: len(options[cell]))
    for digit in options[row, column]:
        tried = [line[:] for line in grid]
        tried[row][column] = digit
        yield from solve(tried)


def _full_grid(size: int, random: Random) -> Grid:
    """Return a filled board: the plain pattern, with digits, rows and columns shuffled."""
    block = isqrt(size)

    def lines() -> list[int]:
        bands = random.sample(range(block), block)
        return [band * block + i for band in bands for i in random.sample(range(block), block)]

    rows, columns, digits = lines(), lines(), random.sample(range(1, size + 1), size)
    return [[digits[(block * (r % block) + r // block + c) % size] for c in columns] for r in rows]


def show(grid: Grid) -> str:
    return "\n".join("".join(str(digit) if digit else "." for digit in row) for row in grid)


def read_grid(text: str) -> Grid:
    return [[0 if cell == "." else int(cell) for cell in row] for row in text.split("\n")]
