"""Groups the options in which a user says what a coach judges by, and what bounds its scores."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from rolecall.config.section import Section


def read_text(value: Any) -> Any:
    """Return the text of {"file": PATH}, and anything else as it is."""
    if not isinstance(value, dict):
        return value
    if set(value) != {"file"} or not isinstance(value["file"], str):
        raise ValueError("write a text, or file: PATH alone")
    path = Path(value["file"]).expanduser()
    try:
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise ValueError(f"cannot read the file {path}: {why}") from None
    if not text:
        raise ValueError(f"the file {path} is empty; write the rules into it")
    return text


Text = Annotated[str, BeforeValidator(read_text)]


class Rubric(Section):
    """The rules of a coach in the words of its user. Each text may be {file: PATH} instead."""

    rules: Text = ""
    """Criteria of this task for all agents. Each text of a rubric may be {file: PATH} instead."""
    agents: dict[str, Text] = Field(default_factory=dict)
    """Criteria for single agents, given to the coach only where that agent is judged."""
    blame: tuple[Text, ...] = ()
    """Rules that say who is to blame for a later failure, e.g. "no X_test.pkl: engineer"."""
    replaces: frozenset[Literal["rules", "blame"]] = frozenset()
    """Rules of the package that are left out, so that only those here hold: `rules` (what scores
    mean and what counts), `blame`."""

    @model_validator(mode="after")
    def _check_replaced(self) -> Rubric:
        if "rules" in self.replaces and not (self.rules or self.agents):
            raise ValueError("replaces: rules leaves nothing to judge by; write rules or agents")
        if "blame" in self.replaces and not (self.blame or self.rules or self.agents):
            raise ValueError("replaces: blame leaves no rule of blame; write some under blame")
        return self


def explain_most(most: float, scale: int) -> str:
    """Say what is wrong with a bound that no score is above."""
    return f"{most:g} bounds nothing, as scores are at most {scale}; write a smaller number"


class Cap(Section):
    """A bound on scores of an episode that one of its metrics measures as bad."""

    metric: str
    """Name of a metric of the episode, e.g. score or normalised_score."""
    below: float | None = None
    """The bound holds where the metric is below this."""
    above: float | None = None
    """The bound holds where the metric is above this, as of an error."""
    agents: frozenset[str] = frozenset()
    """Agents whose scores are bounded; by default all."""
    most: float = Field(ge=0)
    """Highest score, on the coach's scale."""
    missing: Literal["error", "skip", "cap"] = "error"
    """An episode without the metric ends the run, has no bound, or is bounded all the same."""

    @model_validator(mode="after")
    def _check_bound(self) -> Cap:
        if (self.below is None) == (self.above is None):
            raise ValueError(f"write either below or above, for the metric {self.metric!r}")
        return self
