"""Pays attempts that give the answer which most attempts at the task give (TTRL, 2504.16084)."""

from __future__ import annotations

from rolecall.core.interfaces.environment import World
from rolecall.core.types import Episode, Group
from rolecall.grading.votes import elect, read_vote


class Majority:
    """The team earns 1 if its answer is that of most attempts at the task, else 0.

    It needs no reference answer: with `rewards: {majority: 1.0}` a team trains on questions alone,
    and its score is only reported. Answers are the last \\boxed{} of each attempt in one spelling,
    so 0.5 and 1/2 are one answer. On a tie the answer that was given first wins. An attempt without
    an answer earns 0 and has no vote. It is paid when all attempts at a task have ended, so an
    evaluation does not pay it.
    """

    async def __call__(self, episode: Episode, world: World) -> dict[str, float]:
        """Pay nothing yet: the other attempts are not known."""
        return {}

    def pay_group(self, group: Group) -> list[dict[str, float]]:
        """Return what each attempt of a group earns: answers 1/2, 3, 0.5 -> 1, 0 and 1."""
        answers = [read_vote(episode) for episode in group]
        elected = elect(answers)
        return [{"team": float(answer is not None and answer == elected)} for answer in answers]
