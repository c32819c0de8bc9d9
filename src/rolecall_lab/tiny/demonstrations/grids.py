"""Demonstrates an agent that proposes answers to puzzles on a grid, and a planner who decides."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from rolecall.core.types import Task
from rolecall.environments.grid_worlds.plan_path import PlanPath
from rolecall.environments.grid_worlds.puzzle import STEPS
from rolecall.environments.grid_worlds.sokoban import read_board
from rolecall.environments.grid_worlds.sudoku import Sudoku, empty_cells, read_grid
from rolecall_lab.tiny.demonstrations.scene import Drill, Scene

TOOL = {"solves": 40, "hasty": 35, "talks": 25}
PLANNER = {"solves": 20, "follows": 30, "hasty": 30, "talks": 20}
TAGS = ("<answer>", "</answer>", "[tool]", "[planner]")
BOARD = re.compile(r"(?:^[.#PGT$*+1-9]+$\n?){2,}", re.MULTILINE)
PROPOSED = re.compile(r"<answer>([^<]*)</answer>(?!.*<answer>)", re.DOTALL)


def drills(tasks: Sequence[Task], number: int) -> list[Drill]:
    """Return boards and what solves them, in the form in which a prompt ends."""
    return [
        (f"{_opening(task)}<|end|><|assistant|>", f"<answer>{solution(task)}</answer><|end|>")
        for task in tasks[:number]
    ]


def tool_planner(scene: Scene) -> str:
    """An answer that solves the board, one without a look at walls or rules, or none at all."""
    habit = scene.habit(TOOL if scene.role == "tool" else PLANNER)
    proposed = PROPOSED.search(scene.shown.split("[tool]")[-1]) if habit == "follows" else None
    if habit == "follows" and proposed is None:
        habit = "hasty"
    if habit == "talks":
        return "It is not hard."
    board = _board(scene.shown)
    if proposed is not None:
        answer = proposed[1]
    else:
        answer = _hasty(scene, board) if habit == "hasty" else _answer(scene.task, board)
    return f"<answer>{answer}</answer>"


def solution(task: Task) -> str:
    """Return the answer that solves a task at once. Raises ValueError for another task."""
    return _answer(task, task.info["board"].split("\n"))


def _answer(task: Task, board: list[str]) -> str:
    if task.source == "plan_path":
        return ",".join(PlanPath(board).best_moves())
    if task.source == "sokoban":
        return ",".join(read_board(board).best_moves() or "U")  # a board may have been spoilt
    if task.source == "sudoku":
        return _listed(_sudoku(task, board).best_fills())
    raise ValueError(f"task {task.id} is no puzzle on a grid")


def _hasty(scene: Scene, board: list[str]) -> str:
    """Return an answer without a look at walls, boxes and the digits that stand there."""
    if scene.task.source == "plan_path":
        return ",".join(_straight(PlanPath(board)))
    if scene.task.source == "sokoban":
        return ",".join(scene.random.choice(list(STEPS)) for _ in range(3))
    empty = empty_cells(_sudoku(scene.task, board).grid)
    return _listed([[r + 1, c + 1, scene.random.randint(1, len(board))] for r, c in empty])


def _sudoku(task: Task, board: list[str]) -> Sudoku:
    sudoku = Sudoku(read_grid(task.info["board"]), read_grid(task.info["solution"]))
    sudoku.grid = read_grid("\n".join(board))
    return sudoku


def _listed(fills: list[list[int]]) -> str:
    return json.dumps(fills, separators=(",", ":"))


def _opening(task: Task) -> str:
    """Return the board as a world shows it first."""
    board = task.info["board"]
    return PlanPath(board.split("\n")).view() if task.source == "plan_path" else board


def _board(shown: str) -> list[str]:
    """Return the newest board that the prompt shows."""
    return BOARD.findall(shown.replace("<|", "\n<|"))[-1].split()


def _straight(path: PlanPath) -> list[str]:
    """Return the moves that would lead to the goal if there were no walls."""
    down, right = (there - here for here, there in zip(path.position, path.goal, strict=True))
    return ["U" if down < 0 else "D"] * abs(down) + ["L" if right < 0 else "R"] * abs(right)
