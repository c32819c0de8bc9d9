"""Pays each argument of a debate as MRLM's judge by rules does, for comparisons.

It is no default here, because it can be farmed: a row of key words without a thought scores 0.97.
"""

from __future__ import annotations

import re
from itertools import pairwise
from statistics import fmean

from rolecall.core.interfaces.environment import World
from rolecall.core.types import Episode, group_by

EVIDENCE = (
    "according to", "data shows", "evidence suggests", "for example", "for instance",
    "research shows", "statistics", "studies indicate",
)  # fmt: skip
REASONING = (
    "as a result", "because", "consequently", "follows that", "implies that", "therefore",
    "this means", "thus",
)  # fmt: skip
UNKNOWN = 0.5  # coverage of key points where there are none


class Debate:
    """Each argument earns `of_argument`, and a debater's last one `of_debate` instead.

    Both stand at the turns. Key points are a list in the task's row, `key_points`.

    judge: the agent that does not argue.
    shortest, longest: characters between which an argument's length is worth 1.
    """

    weighs_itself = True  # it pays turns

    def __init__(self, judge: str = "judge", shortest: int = 100, longest: int = 500) -> None:
        self.judge, self.shortest, self.longest = judge, shortest, longest

    async def __call__(self, episode: Episode, world: World) -> dict[str, float]:
        topic, points = episode.task.prompt, episode.task.info.get("key_points") or []
        limits = {"shortest": self.shortest, "longest": self.longest}
        spoken = [turn for turn in episode.turns if turn.agent != self.judge and turn.chosen]
        for turns in group_by(spoken, "agent"):
            texts = [turn.visible for turn in turns]
            worth = [score_argument(text, topic, **limits) for text in texts]
            for turn, score in zip(turns, worth, strict=True):
                turn.rewards["mrlm"] = score
            turns[-1].rewards["mrlm"] = score_debate(texts, worth, points)
        return {}


def score_argument(text: str, topic: str, *, shortest: int = 100, longest: int = 500) -> float:
    """Return .2 length + .25 evidence / 2 + .25 reasoning / 2 + .15 sentences / 5 + .15 topic words
    / 3.

    Each share is at most 1; counted are phrases that occur, not how often.
    """
    lower, size = text.lower(), len(text)
    length = min(1.0, size / shortest)
    if size > longest:
        length = max(0.5, 1 - (size - longest) / longest)
    words = [word for word in topic.lower().split() if len(word) > 3]
    return (
        0.2 * length
        + 0.25 * min(1.0, sum(phrase in lower for phrase in EVIDENCE) / 2)
        + 0.25 * min(1.0, sum(phrase in lower for phrase in REASONING) / 2)
        + 0.15 * min(1.0, len(re.findall(r"[.!?]+", text)) / 5)
        + 0.15 * min(1.0, sum(word in lower for word in words) / 3)
    )


def score_debate(texts: list[str], worth: list[float], points: list[str]) -> float:
    """Return .6 mean of the arguments + .2 words that neighbours share + .2 key points touched."""
    words = [set(text.lower().split()) for text in texts]
    shared = [len(a & b) / len(a | b) for a, b in pairwise(words) if a | b]
    alike = fmean(shared) if shared else 1.0
    spoken = " ".join(texts).lower()
    touched = [
        any(word in spoken for word in point.lower().split() if len(word) > 3) for point in points
    ]
    covered = fmean(touched) if touched else UNKNOWN
    return 0.6 * fmean(worth) + 0.2 * alike + 0.2 * covered
