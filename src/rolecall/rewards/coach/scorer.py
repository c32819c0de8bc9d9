"""Scores an action and writes the score, with its reasons and its price, on the turn."""

from __future__ import annotations

from dataclasses import asdict

from rolecall.core.types import CoachNote
from rolecall.rewards.coach.judge import Judge
from rolecall.rewards.coach.rendering import Action
from rolecall.rewards.coach.scores import CoachError, Score, Usage


class Scorer:
    """Asks a judge and keeps its ledger."""

    def __init__(self, judge: Judge) -> None:
        self.judge, self.access, self.ledger = judge, judge.access, judge.ledger

    async def settle(self, action: Action) -> CoachError | None:
        """See to it that the action's turn has a score. Returns why it has none."""
        return None if action.turn.coach is not None else await self._tried(action)

    async def look_back(self, action: Action, outcome: dict[str, float]) -> CoachError | None:
        """Add a second score beside the first, with the outcome in view."""
        action.outcome = outcome
        return await self._tried(action)

    async def _tried(self, action: Action) -> CoachError | None:
        try:
            await self.write(action)
        except CoachError as error:
            return error
        return None

    async def write(self, action: Action) -> Score:
        """Score an action and write it down at the turn; with its outcome, as in hindsight.

        Raises CoachError.
        """
        turn = action.turn
        usage = self.usage()
        try:
            score = await self.judge(action, usage)
        except CoachError as error:
            self.ledger.add_failure(turn.agent, error, usage=usage)
            raise
        finally:
            turn.coach_requests = (turn.coach_requests or 0) + usage.tries
        self.ledger.add_score(turn.agent, score)
        note = CoachNote(**asdict(score.verdict), usage=asdict(score.usage), cached=score.cached)
        if turn.coach is None:
            turn.coach = note
        else:
            turn.coach.hindsight = note
        return score

    def usage(self) -> Usage:
        """Return a usage that counts nothing yet."""
        return Usage(self.access.provider, self.access.model)
