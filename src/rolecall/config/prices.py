"""The keys of the `prices` section of a config: what tokens of a policy cost."""

from __future__ import annotations

from pydantic import Field

from rolecall.config.section import Section


class PriceConfig(Section):
    """The price of a policy's tokens, in dollars: evaluations report the cost of each agent, and
    the budgets of engines count with it."""

    prompt: float = Field(0.0, ge=0, le=1e6)
    """US dollars per million prompt tokens."""
    cached: float | None = Field(None, ge=0, le=1e6)
    """US dollars per million prompt tokens that the provider had cached; by default as `prompt`."""
    completion: float = Field(0.0, ge=0, le=1e6)
    """US dollars per million sampled tokens, reasoning included."""
