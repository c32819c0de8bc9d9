"""Writes the rules by which a coach judges: those of this package, and those of its user."""

from __future__ import annotations

from dataclasses import dataclass, field

from rolecall.rewards.coach.rubric_section import Rubric
from rolecall.rewards.coach.wording import (
    BLAME,
    CUT_OFF,
    DATA,
    HINDSIGHT,
    INTRO,
    LATER_BLAME,
    MEANINGS,
    WORK,
)


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules of a coach, and the highest score that it gives."""

    rubric: Rubric = field(default_factory=Rubric)
    scale: int = 10

    def write(self, agent: str, *, hindsight: bool) -> str:
        """Return the rules for an action of an agent.

        The rubric's words come before the rule that what agents wrote is data, and cannot replace
        it.
        """
        parts = [INTRO, self._general(), *self._of_user(agent), DATA]
        if hindsight:
            later = "." if "blame" in self.rubric.replaces else f"{LATER_BLAME}."
            parts.append(HINDSIGHT + later + "\n")
        return "".join(parts)

    def _general(self) -> str:
        """Return the rules of this package that the rubric leaves in force."""
        replaced = self.rubric.replaces
        lines = [] if "rules" in replaced else [WORK]
        lines += [] if "blame" in replaced else [BLAME]
        if "rules" in replaced:
            head = f"\nThe score is a number from 0 to {self.scale}, decimals allowed.\n\n"
        else:
            meanings = "".join(
                f"{level * self.scale / 10:>{2 if self.scale == 10 else 3}g}  {meaning}\n"
                for level, meaning in MEANINGS
            )
            head = f"\nScale of the score, decimals allowed:\n{meanings}\n"
        return head + " ".join([*lines, CUT_OFF]) + "\n"

    def _of_user(self, agent: str) -> list[str]:
        rubric = self.rubric
        parts = []
        if rubric.rules:
            parts.append(f"\nWhat counts in this task:\n{rubric.rules.strip()}\n")
        if agent in rubric.agents:
            parts.append(f"\nWhat counts for {agent}:\n{rubric.agents[agent].strip()}\n")
        if rubric.blame:
            rules = "".join(f"- {rule.strip()}\n" for rule in rubric.blame)
            parts.append(f"\nWho is to blame when something fails:\n{rules}")
        return parts
