"""Poses grids with walls: a team lists the moves from where it stands to the goal."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from copy import copy
from random import Random

from rolecall.core.interfaces.environment import ENDLESS, World
from rolecall.core.json_types import JsonObject
from rolecall.core.types import Task
from rolecall.environments.grid_worlds.puzzle import (
    STEPS,
    Cell,
    PuzzleTasks,
    PuzzleWorld,
    find_cells,
    move,
    read_moves,
)

RULES = (
    "Walk from P to G around the walls #. The moves are U, D, L and R. "
    "Write all of them in order, as in <answer>R,D,D</answer>."
)


class PlanPathEnvironment:
    """Grids with a start P, a goal G and walls #; a path always exists.

    size: rows and columns of a grid.
    walls: walls in a grid; by default 22 % of the cells.
    test_size: grids of the test split.
    """

    lone_workflow = "multi_turn"

    def __init__(self, size: int = 10, walls: int | None = None, test_size: int = 200) -> None:
        if size < 2:
            raise ValueError(f"size is {size}; a grid has at least 2 rows and columns")
        self.size, self.walls = size, size * size * 22 // 100 if walls is None else walls
        if not 0 <= self.walls <= size * size // 2:
            raise ValueError(
                f"walls is {self.walls}; at most half of the cells ({size * size // 2}) are walls"
            )
        self.sizes = {"train": ENDLESS, "test": test_size}

    def tasks(self, split: str) -> Sequence[Task]:
        key = ("plan_path", self.size, self.walls)
        return PuzzleTasks(split, self._draw, key=key, rules=RULES, size=self.sizes[split])

    def _draw(self, random: Random) -> JsonObject:
        cells = [(row, column) for row in range(self.size) for column in range(self.size)]
        while True:
            start, goal, *walls = random.sample(cells, 2 + self.walls)
            grid = [["."] * self.size for _ in range(self.size)]
            for (row, column), symbol in [(start, "P"), (goal, "G"), *((w, "#") for w in walls)]:
                grid[row][column] = symbol
            rows = ["".join(row) for row in grid]
            if start in PlanPath(rows).distances:
                return {"board": "\n".join(rows)}

    def open(self, task: Task, *, seed: int) -> World:
        return PuzzleWorld(PlanPath(task.info["board"].split("\n")))


class PlanPath:
    """A walk under way. A move into a wall or off the grid ends the list of moves there."""

    def __init__(self, rows: list[str]) -> None:
        [self.position], [self.goal] = find_cells(rows, "P"), find_cells(rows, "G")
        self.free = frozenset(find_cells(rows, ".PG"))
        self.size = len(rows)
        self.distances = walking_distances(self.free, self.goal)
        self.first = max(1, self.distances.get(self.position, 1))

    def view(self) -> str:
        rows = "\n".join(
            "".join(self._symbol((row, column)) for column in range(self.size))
            for row in range(self.size)
        )
        return f"{_name('P', self.position)} {_name('G', self.goal)}\n{rows}"

    def _symbol(self, cell: Cell) -> str:
        named = {self.goal: "G", self.position: "P"}
        return named.get(cell, "." if cell in self.free else "#")

    def play(self, answer: str) -> str:
        for number, direction in enumerate(read_moves(answer), 1):
            following = move(self.position, direction)
            if following not in self.free:
                return f"Move {number} ({direction}) ran into a wall or off the grid."
            self.position = following
            if self.position == self.goal:
                break
        return ""

    def progress(self) -> float:
        """Return the share of the way that is done: 1 - steps still needed / steps at first."""
        return max(0.0, 1 - self.distances[self.position] / self.first)

    def is_lost(self) -> bool:
        return False

    def copy(self) -> PlanPath:
        return copy(self)

    def best_moves(self) -> list[str]:
        """Return one of the shortest lists of moves from here to the goal."""
        moves, cell = [], self.position
        while cell != self.goal:
            nearer = self.distances[cell] - 1
            moves.append(next(d for d in STEPS if self.distances.get(move(cell, d)) == nearer))
            cell = move(cell, moves[-1])
        return moves


def walking_distances(free: frozenset[Cell], goal: Cell) -> dict[Cell, int]:
    """Return the steps from each cell from which the goal can be reached."""
    distances, waiting = {goal: 0}, deque([goal])
    while waiting:
        cell = waiting.popleft()
        for following in (move(cell, direction) for direction in STEPS):
            if following in free and following not in distances:
                distances[following] = distances[cell] + 1
                waiting.append(following)
    return distances


def _name(symbol: str, cell: Cell) -> str:
    return f"{symbol} is at row {cell[0] + 1}, column {cell[1] + 1}."
