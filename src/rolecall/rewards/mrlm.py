"""Pays as MRLM's maths, code and tool environments do, for comparisons.

None is a default here, because they can be farmed: a wrong answer with the word `so` in it beats a
plain wrong one, and tools that were called without need pay although the answer is wrong. What
MRLM paid for each call of a tool is left out: five calls were worth more than the answer.
"""

from __future__ import annotations

import sys
from fractions import Fraction

from rolecall.core.interfaces.environment import World
from rolecall.core.tags import find_tag
from rolecall.core.types import Episode
from rolecall.grading.math.answers import extract, references
from rolecall.grading.math.tidy import tidy
from rolecall.grading.math.values import Number, read
from rolecall.rewards.planner_workers import outcome

LARGEST = Fraction(sys.float_info.max)  # 1e9999 is a number, and no float
STEPS = ("first", "then", "therefore", "so", "because", "=")  # also inside of other words


class Maths:
    """correct, less unparsable without a number, plus steps if asked for and signs of them show.

    correct: reward of a number within `tolerance` of the reference.
    unparsable: amount subtracted if the answer holds no number.
    steps: reward of an answer that holds any of STEPS, with `require_solution`.
    require_solution: whether `steps` is paid.
    tolerance: largest difference at which a number is the truth's.
    """

    def __init__(
        self,
        correct: float = 1.0,
        unparsable: float = 0.3,
        steps: float = 0.2,
        require_solution: bool = False,
        tolerance: float = 1e-4,
    ) -> None:
        self.correct, self.unparsable, self.tolerance = correct, unparsable, tolerance
        self.steps = steps if require_solution else 0.0

    async def __call__(self, episode: Episode, world: World) -> dict[str, float]:
        value = number(extract(episode.answer, form="any"))
        truths = [number(reference) for reference in references(episode.task.answer)]
        near = value is not None and any(
            truth is not None and abs(value - truth) < self.tolerance for truth in truths
        )
        shown = any(sign in episode.answer.lower() for sign in STEPS)
        lost = self.unparsable if value is None else 0.0
        return {"team": self.correct * near - lost + self.steps * shown}


class Code:
    """The share of tests that pass, with a bonus for all of them and a penalty without a program.

    whole: added where all tests pass.
    raised: amount subtracted if there is no program.

    MRLM took `raised` where any test ended in an exception. Hidden tests here say only whether
    they passed, so it is taken where there is nothing to call. The environment needs
    `score: share`.
    """

    def __init__(self, whole: float = 1.0, raised: float = 0.5) -> None:
        self.whole, self.raised = whole, raised

    async def __call__(self, episode: Episode, world: World) -> dict[str, float]:
        share = outcome(episode)
        lost = self.raised if "count/no_code" in episode.metrics else 0.0
        return {"team": share + self.whole * (share == 1.0) - lost}


class Tool:
    """At the end: correct + tools * share of the required ones + speed * (1 - turns / max_turns).

    correct: reward of a right answer.
    tools: reward for the share of the required tools (`required_tools` of the task's row).
    speed: reward of a right answer after few turns.
    max_turns: turns after which speed earns nothing.

    An episode without an `<answer>` earns 0.
    """

    def __init__(
        self, correct: float = 0.5, tools: float = 0.3, speed: float = 0.2, max_turns: int = 5
    ) -> None:
        self.correct, self.tools, self.speed, self.max_turns = correct, tools, speed, max_turns

    async def __call__(self, episode: Episode, world: World) -> dict[str, float]:
        if not find_tag(episode.answer, "answer"):
            return {"team": 0.0}
        right = outcome(episode) >= 1.0
        required = set(episode.task.info.get("required_tools") or ())
        calls = [call for turn in episode.turns for call in turn.tools.calls]
        used = {
            call["name"] for call in calls if call.get("problem") not in ("malformed", "unknown")
        }
        share = len(required & used) / max(len(required), 1)
        quick = 1 - len(episode.turns) / self.max_turns
        return {"team": self.correct * right + self.tools * share + self.speed * quick * right}


def number(text: str | None) -> float | None:
    """Return the value of a text as a number, if it is one: "1/2" -> .5."""
    value = None if text is None else read(tidy(text))
    if not isinstance(value, Number):
        return None
    return float(value.value) if abs(value.value) <= LARGEST else None
