"""Groups the options of a coach: what it is shown, and what its answers must be."""

from __future__ import annotations

from pydantic import Field

from rolecall.config.section import Section
from rolecall.core.types import Turn


class View(Section):
    """The limits and texts with which a coach is shown an action."""

    team: dict[str, str] = Field(default_factory=dict)
    """Role of each agent in one line, in this order; by default the agents that spoke."""
    ground_truth_roles: frozenset[str] = frozenset()
    """Agents whose actions the coach judges with the reference answer in view."""
    transcript_chars: int = Field(24_000, ge=2)
    """Most characters of the transcript; the middle of a longer one is cut."""
    tool_chars: int = Field(4_000, ge=2)
    """Most characters of a tool's output, and of the reasons that agents are shown."""

    def shows_truth(self, turn: Turn) -> bool:
        """Return whether an action is judged with the reference answer in view."""
        return turn.agent in self.ground_truth_roles


class Tries(Section):
    """Bounds the requests for one score, and the scores that may be missing."""

    retries: int = Field(2, ge=0)
    """New requests after an answer that cannot be read."""
    max_error_rate: float = Field(0.5, gt=0, le=1)
    """The run stops when more than this share of the last actions have no score."""
    error_window: int = Field(100, ge=1)
    """Number of last actions that `max_error_rate` looks at."""


class Answers(Tries):
    """The form of a coach's answers, and how many actions may go without a score."""

    structured: bool = True
    """Ask for JSON, by a schema where the engine knows them; False: ask for text."""
    check_request: bool = True
    """Refuse an answer that does not repeat the request's random code."""
