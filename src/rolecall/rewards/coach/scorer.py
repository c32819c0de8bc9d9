"""Scores an action and writes the score, with its reasons and its price, on the turn."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from typing import TypeVar

from rolecall.core.async_types import Work
from rolecall.core.types import CoachNote
from rolecall.rewards.coach.ledger import Ledger
from rolecall.rewards.coach.rendering import Action
from rolecall.rewards.coach.scores import CoachError, Score, Usage
from rolecall.runtime import call_tree

Result = TypeVar("Result")


Judging = Callable[[Action, Usage], Awaitable[Score]]  # raises CoachError


class Scorer:
    """Asks a judge and keeps its ledger."""

    def __init__(
        self, judge: Judging, ledger: Ledger, *, model: str = "", is_local: bool = False
    ) -> None:
        """`is_local`: the judge waits for an engine of this run."""
        self.judge, self.ledger, self.model, self.is_local = judge, ledger, model, is_local

    async def apart(self, work: Work[Result]) -> Result:
        """Return what work outside of the episode comes to; what it asks takes no path of calls."""
        with self.waiting():
            return await call_tree.outside(work)

    def waiting(self) -> AbstractContextManager[None]:
        """Let an engine of this run step while such work is awaited, if that is what it needs."""
        return call_tree.waiting() if self.is_local else nullcontext()

    async def settle(self, action: Action) -> CoachError | None:
        """See to it that the action's turn has a score. Returns why it has none."""
        return None if action.turn.coach.note is not None else await self._tried(action)

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
            score = await self.ask(action, usage)
        finally:
            turn.coach.requests = (turn.coach.requests or 0) + usage.tries
        note = CoachNote(**asdict(score.verdict), usage=asdict(score.usage), cached=score.cached)
        if turn.coach.note is None:
            turn.coach.note = note
        else:
            turn.coach.note.hindsight = note
        return score

    async def ask(self, action: Action, usage: Usage) -> Score:
        """Return an action's score, and count it or its failure; raises CoachError."""
        try:
            score = await self.judge(action, usage)
        except CoachError as error:
            self.ledger.add_failure(action.turn.agent, error, usage=usage)
            raise
        self.ledger.add_score(action.turn.agent, score)
        return score

    def usage(self) -> Usage:
        """Return a usage that counts nothing yet."""
        return Usage(self.model)
