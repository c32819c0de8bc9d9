"""Follows one episode for a coach: what each action is judged beside, when, and who is told.

An action is put down when it was taken, with the files and the truth of that moment. What comes
later cannot reach its question, whenever that is asked.
"""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass, field, replace
from typing import Literal

from rolecall.core.interfaces.environment import World
from rolecall.core.tags import visible
from rolecall.core.types import Episode, Turn
from rolecall.rewards.coach.caps import Caps, apply_caps, reset_cap
from rolecall.rewards.coach.mixing import Mixing
from rolecall.rewards.coach.reading import without_form
from rolecall.rewards.coach.rendering import Action, cut
from rolecall.rewards.coach.scorer import Scorer
from rolecall.rewards.coach.scores import CoachError, CoachStopError
from rolecall.rewards.coach.sections import View
from rolecall.runtime.call_tree import outside
from rolecall.runtime.turn_order import turns_known_before

When = Literal["after_episode", "after_action"]


@dataclass(frozen=True, slots=True)
class CoachSettings:
    """Options that say when and with what a coach scores an episode."""

    mixing: Mixing
    view: View = field(default_factory=View)
    when: When = "after_episode"
    show_to: frozenset[str] = frozenset()  # agents that are told scores and reasons
    hindsight: bool = False
    in_evaluation: bool = False
    caps: Caps = field(default_factory=Caps)

    def __post_init__(self) -> None:
        if self.show_to and self.when != "after_action":
            raise ValueError(
                "show_to needs when: after_action, because a score that is given after the "
                "episode reaches no agent in it"
            )


class Following:
    """One episode that a coach follows from its first action on, or sees when it is over."""

    def __init__(
        self, scorer: Scorer, settings: CoachSettings, episode: Episode, world: World
    ) -> None:
        self.scorer, self.settings, self.team = scorer, settings, settings.view.team
        self.episode, self.world = episode, world
        self.asked = settings.in_evaluation or not episode.id.startswith("evaluation:")
        self._actions: dict[str, Action] = {}  # by the id of the turn
        self._judging: dict[str, asyncio.Task[CoachError | None]] = {}
        self._lost: dict[str, CoachError] = {}  # of turns that had no score before a replay

    async def on_action(self, turn: Turn, before: Turn | None) -> None:
        """Put the action down as it is now; judge it too, if that is not left for later.

        The judging is work outside of the episode: neither this one nor others wait for it until
        somebody is shown its words, or the episode ends.
        """
        if not self.asked or not _is_judged(turn):
            return
        action = self._actions[turn.id] = await self._action(turn)
        if before is not None and _is_same(turn, before):
            self._keep(turn, before)
        if self.settings.when == "after_action" and turn.id not in self._lost:
            # Who comes later, and who has the last word, is not known yet.
            action.team = self.team or dict.fromkeys(self._spoken(until=turn), "")
            self._judging[turn.id] = outside(self.scorer.settle(action))

    async def words_for(self, agent: str, turn: Turn) -> str:
        """Return the score of a turn and the reasons, once they are there; "" where there are none.

        What was judged with the reference answer in view is shown to nobody: it would tell the
        answer. Raises CoachStopError where no action can be scored any more.
        """
        if agent not in self.settings.show_to or self.settings.view.shows_truth(turn):
            return ""
        judging = self._judging.get(turn.id)
        if judging is not None:
            with self.scorer.waiting():
                await asyncio.wait([judging])  # which ends it for nobody else if we are cancelled
            if isinstance(error := judging.result(), CoachStopError):
                raise error
        if turn.coach.note is None:
            return ""
        reasons = cut(
            visible(without_form(turn.coach.note.reasoning)), self.settings.view.tool_chars
        )
        note = turn.coach.note
        return f"[coach on {turn.agent}]\n{note.score:g} of {note.scale:g}: {reasons}"

    async def __call__(self, episode: Episode, world: World) -> dict[str, float]:
        """Score the trained actions of the finished episode; nothing is given to whole agents.

        Raises CoachStopError where no action can be scored any more, CoachError for an action
        without a score if `on_error` drops the episode.
        """
        if not self.asked:
            return {}
        turns = [turn for turn in episode.turns if _is_judged(turn)]
        outcome = {
            name: value
            for name, value in episode.all_metrics.items()
            if not name.startswith(("count/", "coach/", "reward/"))
        }
        if self.settings.hindsight and not outcome:
            raise ValueError(f"hindsight needs an outcome, and {episode.id} has no metrics")
        self.settings.mixing.check(episode, turns)
        caps = self.settings.caps.find(episode.all_metrics)
        played = self._spoken()
        for turn in turns:
            if turn.id not in self._actions:
                self._actions[turn.id] = await self._action(turn)
            if turn.id not in self._judging:
                action = self._actions[turn.id]
                action.team = self.team or dict.fromkeys(played, "")
                action.final = played[-1] if played else ""
        errors = await self.scorer.apart(self._settle_all(turns, outcome))
        for error in errors:
            if isinstance(error, CoachStopError):
                raise error
        for turn in turns:
            apply_caps(caps, turn)
        calls = sum(turn.coach.requests or 0 for turn in turns)
        episode.metrics["count/coach_calls"] = calls
        episode.metrics["count/coach_errors"] = sum(error is not None for error in errors)
        self.settings.mixing.reward(episode, turns, errors)
        return {}

    def close(self) -> None:
        """End the judging of an episode that was given up."""
        for judging in self._judging.values():
            if not judging.done():
                judging.cancel()
            elif not judging.cancelled():
                judging.exception()  # which nobody may have asked for

    async def _settle_all(
        self, turns: list[Turn], outcome: dict[str, float]
    ) -> list[CoachError | None]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._settle(turn, outcome)) for turn in turns]
        return [task.result() for task in tasks]

    async def _settle(self, turn: Turn, outcome: dict[str, float]) -> CoachError | None:
        if turn.id in self._lost:
            return self._lost[turn.id]
        judging = self._judging.get(turn.id)
        action = self._actions[turn.id]
        error = await (self.scorer.settle(action) if judging is None else judging)
        if error is None and self.settings.hindsight:
            error = await self.scorer.look_back(action, outcome)
        return error

    async def _action(self, turn: Turn) -> Action:
        truth = await self.world.truth_text() if self.settings.view.shows_truth(turn) else ""
        return Action(turn, self.episode.task, files=turn.tools.files, truth=truth)

    def _spoken(self, *, until: Turn | None = None) -> list[str]:
        """Agents of the played turns in their order; those that one turn knows, and its own agent.

        What is said at the same time is left out: it depends on who is faster.
        """
        if until is None:
            turns = sorted(self.episode.turns, key=lambda turn: turn.path)
            return [turn.agent for turn in turns if turn.chosen]
        return [*(turn.agent for turn in turns_known_before(until, self.episode)), until.agent]

    def _keep(self, turn: Turn, before: Turn) -> None:
        """Keep the coach's verdict of a replayed action, and pay nothing for it again."""
        if before.coach.note is not None:
            usage = asdict(self.scorer.usage())
            turn.coach.note = replace(before.coach.note, usage=usage, cached=True, hindsight=None)
            reset_cap(turn.coach.note)  # a bound belongs to the end of an episode
        elif before.coach.error:
            self._lost[turn.id] = CoachError(before.coach.error)


def _is_judged(turn: Turn) -> bool:
    return turn.trained and turn.tokens is not None


def _is_same(turn: Turn, before: Turn) -> bool:
    """Return whether two actions are the same: words, calls and their results, and files beside
    them.
    """
    shown = [[(m.role, m.content) for m in one.messages] for one in (turn, before)]
    return (
        shown[0] == shown[1]
        and turn.agent == before.agent
        and turn.text == before.text
        and turn.tools.calls == before.tools.calls
        and turn.tools.files == before.tools.files
    )
