"""Mixes the coach's scores of an episode's turns into their rewards, as declared."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from rolecall.core.types import Episode, Turn
from rolecall.rewards.coach.scores import CoachError

OnError = Literal["drop_action", "drop_episode", "outcome_only"]
NEUTRAL = 0.5  # share of the scale that `on_error: neutral` stands for
OutcomeOn = Literal["all", "last"]


@dataclass(frozen=True, slots=True)
class Mixing:
    """w_process * score / scale + w_outcome * outcome; and what an action without a score earns."""

    w_process: float
    w_outcome: float
    outcome_on: OutcomeOn
    on_error: OnError | Literal["neutral"]

    def __post_init__(self) -> None:
        if self.w_process < 0 or self.w_outcome < 0 or not self.w_process + self.w_outcome:
            raise ValueError(
                f"w_process and w_outcome must not be negative nor both 0, got {self.w_process} "
                f"and {self.w_outcome}"
            )
        if not self.w_outcome and self.on_error == "outcome_only":
            raise ValueError("on_error: outcome_only needs w_outcome above 0: else it earns 0")
        if not self.w_outcome and self.outcome_on == "last":
            raise ValueError("outcome_on: last has no effect: w_outcome is 0")

    def check(self, episode: Episode, turns: list[Turn]) -> None:
        """Check outcomes before any money is spent; raises ValueError if one is missing."""
        if self.w_outcome:
            for turn in turns:
                self._outcome(episode, turn)

    def reward(self, episode: Episode, turns: list[Turn], errors: list[CoachError | None]) -> None:
        """Write rewards and the mean score of each agent. `errors` belong to `turns`.

        Score 8 and outcome 1 with weights 0.5 and 0.5 -> 0.9.
        """
        scores: defaultdict[str, list[float]] = defaultdict(list)
        for turn, error in zip(turns, errors, strict=True):
            late = self.outcome_on == "last" and turn is not turns[-1]
            outcome = 0.0 if late or not self.w_outcome else self._outcome(episode, turn)
            if error is None:
                assert turn.coach.note is not None, f"{turn.id} has neither a score nor an error"
                note = turn.coach.note.final
                scores[turn.agent].append(note.score)
                process = note.score / note.scale
                turn.rewards["coach"] = self.w_process * process + self.w_outcome * outcome
                continue
            turn.coach.error = str(error)
            if self.on_error in ("outcome_only", "neutral"):
                process = NEUTRAL if self.on_error == "neutral" else 0.0
                turn.rewards["coach"] = self.w_process * process + self.w_outcome * outcome
            elif self.on_error == "drop_action":
                turn.weight = 0.0
                turn.trained = False  # credit leaves it out, also of means and spreads
            else:
                raise error
        for agent, values in scores.items():
            episode.metrics[f"coach/{agent}"] = fmean(values)

    def _outcome(self, episode: Episode, turn: Turn) -> float:
        score = episode.scores.get(turn.agent, episode.scores.get("team"))
        if score is None or not 0 <= score <= 1:
            raise ValueError(
                f"w_outcome needs an outcome of {turn.agent!r} in 0..1; {episode.id} has {score}"
            )
        return score
