"""Opens a puzzle on a grid as a world: an answer is played, and the team sees the new board.

The rewards are those of AT-GRPO (2510.11062): dense for the team while a puzzle is being solved.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from random import Random
from typing import Protocol

from rolecall.core.interfaces.environment import Observation, World
from rolecall.core.json_types import JsonObject
from rolecall.core.seeding import derive_seed
from rolecall.core.tags import find_tag
from rolecall.core.types import Episode, Task
from rolecall.data.sources import LazyTasks

TEST_SHARE = 10  # one board in ten is a test board
FAULT = 0.1  # what an answer loses that is unreadable or breaks a rule
STEPS = {"U": (-1, 0), "D": (1, 0), "L": (0, -1), "R": (0, 1)}
MOVES = re.compile(r"[\[\]\"',\s]*(?:[UDLR][\[\]\"',\s]*)+")
UNREADABLE = "There was no answer of the asked form between <answer> and </answer>."

Cell = tuple[int, int]  # row and column, from 0 at the top left


class Puzzle(Protocol):
    """A board under way."""

    def view(self) -> str:
        """Return the board as the team sees it."""
        ...

    def play(self, answer: str) -> str:
        """Play what stands between the answer tags; return what was wrong with it, or "".

        Raises ValueError for an answer that cannot be read, which changes nothing.
        """
        ...

    def progress(self) -> float:
        """Return how far the puzzle is solved, in [0, 1]; 1 only if it is solved."""
        ...

    def is_lost(self) -> bool:
        """Return whether no answer can solve it any more, as far as that is easily seen."""
        ...

    def copy(self) -> Puzzle: ...


class PuzzleTasks(LazyTasks):
    """Boards of a split, each made when it is asked for; no board is in both splits."""

    def __init__(
        self,
        split: str,
        make_board: Callable[[Random], JsonObject],
        *,
        key: tuple[object, ...],
        rules: str,
        size: int,
    ) -> None:
        """make_board: draws what a task's `info` holds; key: name and options of the puzzle."""
        self.split, self.make_board, self.key = split, make_board, key
        self.rules, self.size = rules, size

    def make(self, index: int) -> Task:
        random = Random(derive_seed(*self.key, self.split, index))
        while True:
            board = self.make_board(random)
            in_test = derive_seed(*sorted(board.items())) % TEST_SHARE == 0
            if in_test == (self.split == "test"):
                info = {"source": str(self.key[0])} | board
                return Task(f"{self.split}-{index}", self.rules, None, info)


class PuzzleWorld(World):
    """Plays answers on one board; the outcome is 1 if the puzzle is solved, else 0.

    After a step `team` is the progress, and `reward` what the step added to it, less FAULT for an
    answer that is unreadable or breaks a rule.
    """

    def __init__(self, puzzle: Puzzle) -> None:
        self.puzzle = puzzle

    async def reset(self) -> Observation:
        return Observation(self.puzzle.view())

    async def fork(self) -> PuzzleWorld:
        return PuzzleWorld(self.puzzle.copy())

    async def step(self, agent: str, action: str) -> Observation:
        before = self.puzzle.progress()
        try:
            complaint = self.puzzle.play(find_tag(action, "answer") or "")
        except ValueError:
            complaint = UNREADABLE
        after, board = self.puzzle.progress(), self.puzzle.view()
        return Observation(
            "\n".join(filter(None, [complaint, board])),
            key=board,
            reward=after - before - (FAULT if complaint else 0.0),
            team=after,
            done=after == 1.0 or self.puzzle.is_lost(),
        )

    async def score(self, episode: Episode) -> dict[str, float]:
        progress = self.puzzle.progress()
        episode.metrics["progress"] = progress
        return {"team": float(progress == 1.0)}


def read_moves(answer: str) -> list[str]:
    """Return the moves of an answer: `U,R`, `U R`, `UR` and `["U", "R"]` are two.

    Raises ValueError where anything else stands there, or nothing.
    """
    if not MOVES.fullmatch(answer.upper()):
        raise ValueError(f"no list of the moves U, D, L and R: {answer!r}")
    return [letter for letter in answer.upper() if letter in STEPS]


def find_cells(rows: list[str], symbols: str) -> list[Cell]:
    """Return the cells that hold one of the symbols, row by row."""
    return [(r, c) for r, row in enumerate(rows) for c, cell in enumerate(row) if cell in symbols]


def move(cell: Cell, direction: str, *, times: int = 1) -> Cell:
    """Return the cell that lies so many steps from a cell."""
    down, right = STEPS[direction]
    return cell[0] + times * down, cell[1] + times * right
