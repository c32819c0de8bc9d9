"""Poses boxes that are to be pushed onto targets: Sokoban, always solvable.

A board is made backwards: boxes stand on their targets, and the worker pulls them away.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from copy import copy
from itertools import permutations
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
    "Push each box $ onto a target. A target is T, * under a box and + under you; you are P, "
    "walls are #. You push a box by walking into it, and cannot pull. The moves are U, D, L and R. "
    "Write all of them in order, as in <answer>R,D,D</answer>."
)
MOST_BOXES = 6
State = tuple[Cell, frozenset[Cell]]  # where the worker and the boxes are


class SokobanEnvironment:
    """Boards of Sokoban that can be solved.

    size: rows and columns, with the walls around the board.
    boxes: boxes on a board.
    walls: walls inside.
    pulls: moves of the worker who pulls the boxes away from their targets.
    test_size: boards of the test split.
    """

    lone_workflow = "multi_turn"

    def __init__(
        self, size: int = 6, boxes: int = 1, walls: int = 0, pulls: int = 20, test_size: int = 200
    ) -> None:
        if not 1 <= boxes <= MOST_BOXES:
            raise ValueError(f"boxes is {boxes}; a board has 1 to {MOST_BOXES} boxes")
        room = max(0, size - 2) ** 2
        if size < 5 or boxes + walls > room // 2:
            raise ValueError(
                f"size is {size}: {boxes} boxes and {walls} walls need a board of at least 5 rows "
                "on which half of the inner cells stay free"
            )
        if pulls < 1:
            raise ValueError(f"pulls is {pulls}; at least 1 is needed to move a box")
        self.size, self.boxes, self.walls, self.pulls = size, boxes, walls, pulls
        self.sizes = {"train": ENDLESS, "test": test_size}

    def tasks(self, split: str) -> Sequence[Task]:
        key = ("sokoban", self.size, self.boxes, self.walls, self.pulls)
        return PuzzleTasks(split, self._draw, key=key, rules=RULES, size=self.sizes[split])

    def _draw(self, random: Random) -> JsonObject:
        inner = [(r, c) for r in range(1, self.size - 1) for c in range(1, self.size - 1)]
        while True:
            drawn = random.sample(inner, self.walls + self.boxes + 1)
            walls, targets = drawn[: self.walls], frozenset(drawn[self.walls : -1])
            free = frozenset(inner) - frozenset(walls)
            worker, boxes = drawn[-1], targets
            for _ in range(self.pulls):
                worker, boxes = _pull(worker, boxes, free, random)
            board = Sokoban(free, targets, boxes, worker, size=self.size)
            if not boxes & targets:
                return {"board": board.view()}

    def open(self, task: Task, *, seed: int) -> World:
        return PuzzleWorld(read_board(task.info["board"].split("\n")))


def _pull(
    worker: Cell, boxes: frozenset[Cell], free: frozenset[Cell], random: Random
) -> tuple[Cell, frozenset[Cell]]:
    """Walk one step, and pull the box behind the worker along if there is one, mostly."""
    open_steps = [d for d in STEPS if move(worker, d) in free - boxes]
    if not open_steps:
        return worker, boxes
    pulling = [d for d in open_steps if move(worker, d, times=-1) in boxes]
    direction = random.choice(pulling or open_steps)
    behind = move(worker, direction, times=-1)
    if behind in boxes:
        boxes = boxes - {behind} | {worker}
    return move(worker, direction), boxes


class Sokoban:
    """Boxes under way. A move into a wall, or a push that cannot be, ends the list of moves."""

    def __init__(
        self,
        free: frozenset[Cell],
        targets: frozenset[Cell],
        boxes: frozenset[Cell],
        worker: Cell,
        *,
        size: int,
    ) -> None:
        self.free, self.targets, self.boxes = free, targets, boxes
        self.worker, self.size = worker, size
        self.first = self._distance()

    def view(self) -> str:
        return "\n".join(
            "".join(self._symbol((row, column)) for column in range(self.size))
            for row in range(self.size)
        )

    def _symbol(self, cell: Cell) -> str:
        is_target = cell in self.targets
        if cell == self.worker:
            return "+" if is_target else "P"
        if cell in self.boxes:
            return "*" if is_target else "$"
        if is_target:
            return "T"
        return "." if cell in self.free else "#"

    def play(self, answer: str) -> str:
        for number, direction in enumerate(read_moves(answer), 1):
            following = push((self.worker, self.boxes), direction, self.free)
            if following is None:
                return f"Move {number} ({direction}) was blocked."
            self.worker, self.boxes = following
            if self.boxes == self.targets or self.is_lost():
                break
        return ""

    def progress(self) -> float:
        """Return 1 - distance of the boxes from the targets / their distance at first."""
        if self.boxes == self.targets:
            return 1.0
        return 0.0 if self.is_lost() else max(0.0, 1 - self._distance() / self.first)

    def _distance(self) -> int:
        """Return the least sum of distances, each box with a target of its own."""
        boxes = sorted(self.boxes)
        return min(
            sum(abs(a[0] - b[0]) + abs(a[1] - b[1]) for a, b in zip(boxes, order, strict=True))
            for order in permutations(sorted(self.targets))
        )

    def is_lost(self) -> bool:
        """Return whether a box is stuck in a corner that is no target."""
        return any(self._is_stuck(box) for box in self.boxes - self.targets)

    def _is_stuck(self, box: Cell) -> bool:
        blocked = {d for d in STEPS if move(box, d) not in self.free}
        return bool(blocked & {"U", "D"}) and bool(blocked & {"L", "R"})

    def copy(self) -> Sokoban:
        return copy(self)

    def best_moves(self) -> list[str] | None:
        """Return one of the shortest lists of moves that solves the board; None if none does."""
        start: State = (self.worker, self.boxes)
        came_from: dict[State, tuple[State, str] | None] = {start: None}
        waiting = deque([start])
        while waiting:
            state = waiting.popleft()
            if state[1] == self.targets:
                return _trace(state, came_from)
            for direction in STEPS:
                following = push(state, direction, self.free)
                if following is not None and following not in came_from:
                    came_from[following] = (state, direction)
                    waiting.append(following)
        return None


def push(state: State, direction: str, free: frozenset[Cell]) -> State | None:
    """Return the state after a step, which pushes a box that stands there; None if blocked."""
    worker, boxes = state
    cell = move(worker, direction)
    if cell not in free:
        return None
    if cell in boxes:
        behind = move(cell, direction)
        if behind not in free or behind in boxes:
            return None
        boxes = boxes - {cell} | {behind}
    return cell, boxes


def read_board(rows: list[str]) -> Sokoban:
    """Return the board that rows of symbols show."""
    [worker] = find_cells(rows, "P+")
    free, targets = frozenset(find_cells(rows, ".PT$*+")), frozenset(find_cells(rows, "T*+"))
    return Sokoban(free, targets, frozenset(find_cells(rows, "$*")), worker, size=len(rows))


def _trace(state: State, came_from: dict[State, tuple[State, str] | None]) -> list[str]:
    moves = []
    while (step := came_from[state]) is not None:
        state, direction = step
        moves.append(direction)
    return moves[::-1]
