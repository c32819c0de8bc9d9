"""Pays a planner and its workers as MATPO and M-GRPO do.

A rollout, the planner's or that of one call of a worker, has its form if all its turns are valid:
every call of a tool or of a worker can be read. A planner that calls nobody has no workers' form
to lose; then its own counts whole (own: the papers do not say).
"""

from __future__ import annotations

from statistics import fmean

from rolecall.core.interfaces.environment import World
from rolecall.core.types import Episode, Turn, calls, group_by


class Matpo:
    """MATPO (2510.04678): one scalar for planner and workers, mostly whether the answer is right.

    planner: the agent that plans; all others are workers.
    accuracy, form: weights; half of the second is the planner's form, half the mean of the calls'.
    """

    def __init__(self, planner: str = "planner", accuracy: float = 0.9, form: float = 0.1) -> None:
        self.planner, self.accuracy, self.form = planner, accuracy, form

    async def __call__(self, episode: Episode, world: World) -> dict[str, float]:
        """Return the rewards: right, the planner in form, one worker's call of two -> .9 + .05 +
        .025 = .975.
        """
        own, others = forms(episode, self.planner)
        form = (own + fmean(others)) / 2 if others else own
        return {"team": self.accuracy * outcome(episode) + self.form * form}


class MGrpo:
    """M-GRPO (2511.13288): the planner for form and answer, workers for form and for its reward.

    The paper's weights could not be verified, so none is a default. What it pays workers for a
    judge's opinion is the reward `coach` beside this one.

    planner_form, planner_correct: weights of the planner's reward R.
    worker_form: weight of the form of a call, paid to the turns of that call.
    worker_planner: weight of R in what every worker earns.
    planner: the agent that plans; all others are workers.
    """

    weighs_itself = True  # a part of it is in the turns

    def __init__(
        self,
        planner_form: float,
        planner_correct: float,
        worker_form: float,
        worker_planner: float,
        planner: str = "planner",
    ) -> None:
        self.planner_form, self.planner_correct = planner_form, planner_correct
        self.worker_form, self.worker_planner = worker_form, worker_planner
        self.planner = planner

    async def __call__(self, episode: Episode, world: World) -> dict[str, float]:
        own, _ = forms(episode, self.planner)
        earned = self.planner_form * own + self.planner_correct * outcome(episode)
        paid = {self.planner: earned}
        for call in calls_of_workers(episode, self.planner):
            paid[call[0].agent] = self.worker_planner * earned
            for turn in call:
                turn.rewards["form"] = self.worker_form * score_form(call)
        return paid


def forms(episode: Episode, planner: str) -> tuple[float, list[float]]:
    """Return the form of the planner's rollout, and of every call of a worker.

    Raises ValueError if the planner said nothing.
    """
    spoken = [turn for turn in episode.turns if turn.agent == planner and turn.chosen]
    if not spoken:
        names = sorted({turn.agent for turn in episode.turns})
        raise ValueError(f"nobody is called {planner!r} (there are: {', '.join(names)})")
    return score_form(spoken), [score_form(call) for call in calls_of_workers(episode, planner)]


def calls_of_workers(episode: Episode, planner: str) -> list[list[Turn]]:
    turns = [turn for turn in episode.turns if turn.agent != planner and turn.chosen]
    return [call for own in group_by(turns, "agent") for call in calls(own)]


def score_form(turns: list[Turn]) -> float:
    return float(all(turn.valid and turn.finish != "length" for turn in turns))


def outcome(episode: Episode) -> float:
    """Return the score of the team's answer. Raises ValueError in a world that does not say so."""
    if "team" not in episode.scores:
        raise ValueError(f"{episode.id} has no score of the team")
    return episode.scores["team"]
