"""`rolecall eval --answers FILE`: grades answers that another program wrote."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path

from rolecall.config.evaluation import EvaluationConfig
from rolecall.core.errors import ConfigError
from rolecall.core.interfaces.environment import Environment
from rolecall.core.json_types import Record
from rolecall.core.types import Episode, Group, Task
from rolecall.monitor import terminal
from rolecall.rollout.evaluation_summary import summarise
from rolecall.rollout.user_worlds import is_scored_by_steps
from rolecall.runs.plain_team import plan_team
from rolecall.setup.open_environment import open_surroundings

COLUMNS = ("responses", "response")
NOBODY = "tiny:math"  # the policy of the plan, which is never loaded


def grade_answers(file: Path, environment: str | None, overrides: list[str]) -> Record:
    """Return mean, majority and pass@k of the answers in a file, and show them.

    Each row has the columns of the environment's own rows, and `responses`, a list of answers, or
    `response`, one. Raises ConfigError for a file or an environment that does not fit.
    """
    if environment is None:
        raise ConfigError("--answers: name what grades them: --environment NAME")
    rows = [f"environment.{split}={json.dumps(str(file))}" for split in ("train", "test")]
    plan = plan_team(environment, [NOBODY], [*rows, *overrides], number=None)
    grader = open_surroundings(plan).environment
    try:
        tasks = list(grader.tasks("test"))
    except ValueError as error:
        raise ConfigError(f"--answers: {error}") from error
    answers = [_answers(task, file) for task in tasks]
    counts = {len(listed) for listed in answers}
    if len(counts) > 1:
        raise ConfigError(
            f"--answers {file}: rows have {min(counts)} to {max(counts)} answers; write as many in "
            "each"
        )
    groups = asyncio.run(_grade(grader, tasks, answers))
    result = summarise(groups, EvaluationConfig(samples=counts.pop()))
    terminal.show_evaluation({"when": file.name, **result})
    return result


def _answers(task: Task, file: Path) -> list[str]:
    """Return a row's answers; raises ConfigError where it has none."""
    column = next((name for name in COLUMNS if task.info.get(name) is not None), None)
    value = None if column is None else task.info[column]
    listed = value if isinstance(value, list) else [value]
    texts = [one for one in listed if isinstance(one, str)]
    if not texts or len(texts) < len(listed):
        raise ConfigError(
            f"--answers {file}: row {task.id} has no text in {' or '.join(COLUMNS)}; write the "
            "answers of the row there"
        )
    return texts


async def _grade(
    grader: Environment, tasks: Sequence[Task], answers: Sequence[list[str]]
) -> list[Group]:
    """Return an episode for each answer, with the score that the environment gives it."""
    try:
        return [
            [await _score(grader, task, answer, number) for number, answer in enumerate(listed)]
            for task, listed in zip(tasks, answers, strict=True)
        ]
    finally:
        close = getattr(grader, "close", None)
        if close is not None:
            await close()


async def _score(grader: Environment, task: Task, answer: str, attempt: int) -> Episode:
    episode = Episode(f"answers:{task.id}:{attempt}", task, attempt, seed=0, answer=answer)
    world = grader.open(task, seed=0)
    try:
        if is_scored_by_steps(world):
            raise ConfigError("--answers: this environment pays steps; it grades no answers")
        episode.scores = await world.score(episode)
    finally:
        await world.close()
    return episode
