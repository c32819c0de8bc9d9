"""Pays each turn for its own answer, and for how that compares with the answers before it."""

from __future__ import annotations

from statistics import fmean
from typing import Literal

from rolecall.core.interfaces.environment import World
from rolecall.core.types import Episode, Turn, group_by
from rolecall.runtime.turn_order import joint_steps


class OwnAnswers:
    """Every answer of a team earns what it is worth itself, with MARTI's terms for progress.

    R is what an answer is worth by `World.step`, Q the mean R of all answers before it. Turns that
    call tools earn what the answer they lead to earns. It pays turns in place of the outcome, so
    leave out `correct`, and write `earns: outcome` for the workflow `majority_vote`.

    shape: `margin` adds alpha * (R - Q); `quality` adds alpha * (Q * R - (1 - Q) * (1 - R)).
    alpha: factor of that term; 0 pays R alone. First answers are paid R alone, too.
    final: factor of what the last answer is worth, added to all; in a debate it is an agent's own.
    printed: agents whose answer is what their last program or tool returned, as if it stood in a
        box, and not what they said; without a call it is worth 0.
    """

    weighs_itself = True  # alpha and final; no other weight has a part in it

    def __init__(
        self,
        shape: Literal["margin", "quality"] = "margin",
        alpha: float = 0.0,
        final: float = 0.0,
        printed: tuple[str, ...] = (),
    ) -> None:
        if alpha < 0 or final < 0:
            raise ValueError(f"alpha and final are at least 0, got {alpha} and {final}")
        self.shape, self.alpha, self.final = shape, alpha, final
        self.printed = frozenset(printed)

    async def __call__(self, episode: Episode, world: World) -> dict[str, float]:
        """Pay the turns; nothing is given to whole agents.

        margin, alpha .5: wrong, wrong, then right -> 0, 0, 1.5; right, then wrong -> 1, -.5.
        """
        rounds = await self._worth_by_round(episode, world)
        last = rounds[-1] if rounds else {}
        before: list[float] = []
        paid: dict[str, float] = {}  # by turn
        for answers in rounds:
            expected = fmean(before) if before else None
            for name, worth in answers.items():
                paid[name] = worth if expected is None else worth + self._progress(worth, expected)
            before += answers.values()
        agents = {turn.id: turn.agent for turn in episode.turns}
        own = {agents[name]: worth for name, worth in last.items()}
        team = fmean(own.values()) if own else 0.0
        for turns in group_by((turn for turn in episode.turns if turn.chosen), "agent"):
            for number, turn in enumerate(turns):
                answer = next(later.id for later in turns[number:] if later.id in paid)
                final = (
                    self.final * own.get(turn.agent, team) if len(own) > 1 else self.final * team
                )
                turn.pay("own_answers", paid[answer] + final)
        return {}

    async def _worth_by_round(self, episode: Episode, world: World) -> list[dict[str, float]]:
        """Return what each answer is worth, by turn, in the rounds in which they were given."""
        by_id = {turn.id: turn for turn in episode.turns}
        parents = [(turn.agent, by_id.get(name)) for turn in episode.turns for name in turn.parents]
        leads_on = {
            called.id
            for agent, called in parents
            if called is not None and called.agent == agent and called.tools.calls
        }
        return [
            {turn.id: await self._worth(turn, world) for turn in turns if turn.id not in leads_on}
            for turns in joint_steps(episode)
            if any(turn.id not in leads_on for turn in turns)
        ]

    async def _worth(self, turn: Turn, world: World) -> float:
        """Return what an answer is worth by itself."""
        if turn.agent not in self.printed:
            return await world.worth(turn.agent, turn.visible)
        if turn.observation is None:
            return 0.0
        return await world.worth(turn.agent, f"\\boxed{{{turn.observation.strip()}}}")

    def _progress(self, worth: float, expected: float) -> float:
        if self.shape == "margin":
            return self.alpha * (worth - expected)
        return self.alpha * (expected * worth - (1 - expected) * (1 - worth))
