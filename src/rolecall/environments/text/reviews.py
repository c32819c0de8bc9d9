"""Reads the ratings that references of reviews hold, and scores reviews by them."""

from __future__ import annotations

from dataclasses import replace

from rolecall.core.interfaces.environment import Observation, World
from rolecall.core.tags import visible
from rolecall.core.types import Episode, Task
from rolecall.grading.reviews import score_review


def read_rating(task: Task, separator: str | None) -> tuple[str, float]:
    """Return a task's reference and its rating: "A fine paper.|6", "|" -> ("A fine paper.", 6.0).

    Without a separator the reference is the rating. Raises ValueError where there is none.
    """
    text, _, rating = str(task.answer).partition(separator or "\0")
    try:
        return text, float(rating if separator else text)
    except ValueError:
        where = f"behind {separator!r} in its reference" if separator else "as its reference"
        raise ValueError(
            f"metric: review needs a rating {where}; write a number there, or separator"
        ) from None


def split_rating(task: Task, separator: str | None) -> Task:
    """Return the task with its rating in `info`, and without it in the reference."""
    text, rating = read_rating(task, separator)
    return replace(task, answer=text, info=task.info | {"rating": rating})


class ReviewWorld(World):
    """Scores a review, its thinking included, by its rating and its sections."""

    def __init__(self, task: Task) -> None:
        self.rating = float(task.info["rating"])
        self.task = task

    async def fork(self) -> ReviewWorld:
        return ReviewWorld(self.task)

    async def step(self, agent: str, action: str) -> Observation:
        """Take a draft, which earns the team what it would score."""
        return Observation(visible(action), team=score_review(action, self.rating))

    async def score(self, episode: Episode) -> dict[str, float]:
        """Score the review; one that the length limit cut scores 0."""
        is_whole = not episode.is_truncated
        return {"team": score_review(episode.answer, self.rating) if is_whole else 0.0}
