"""Counts what episodes took of each agent: tokens, seconds, and what these cost."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rolecall.core.types import Episode, Turn
from rolecall.runtime.spending import Prices

CALL_S = "call_s/"  # before an agent's name: a metric of an episode, seconds of its calls together


@dataclass(slots=True)
class Taken:
    """The usage of one agent's turns with one policy; what `Prices.cost` reads."""

    turns: int = 0
    prompt_tokens: int = 0  # cached ones included
    cached_tokens: int = 0  # as servers count them
    completion_tokens: int = 0
    seconds: float = 0.0  # from a question to its answer, waiting for the engine included

    def add(self, turn: Turn) -> None:
        """Tokens that nobody counted, of a server without usage, are missing."""
        usage = turn.usage or {}
        prompt = 0 if turn.prompt is None else len(turn.prompt)
        sampled = 0 if turn.tokens is None else len(turn.tokens)
        self.turns += 1
        self.prompt_tokens += int(usage.get("prompt_tokens", prompt))
        self.cached_tokens += int(usage.get("cached_tokens", 0))
        self.completion_tokens += int(usage.get("completion_tokens", sampled))


class Costs:
    """Adds up episodes one by one; `prices` by policy, of those whose price is known."""

    def __init__(self, prices: Mapping[str, Prices]) -> None:
        self.prices = prices
        self.agents: dict[str, tuple[str, Taken]] = {}  # with their policies

    def add(self, episodes: Iterable[Episode]) -> None:
        for episode in episodes:
            for turn in episode.turns:
                self.agents.setdefault(turn.agent, (turn.policy, Taken()))[1].add(turn)
            for name, value in episode.metrics.items():
                if name.startswith(CALL_S) and name.removeprefix(CALL_S) in self.agents:
                    self.agents[name.removeprefix(CALL_S)][1].seconds += value

    def summary(self) -> dict[str, Any]:
        """Return {"prompt_tokens": .., "sampled_tokens": .., "usd": .., "by_agent": {"solver":
        {..}}}.

        USD stands only where the price is known; of all together where that of every agent is.
        """
        by_agent = {name: self._policy_cost(*self.agents[name]) for name in sorted(self.agents)}
        whole: dict[str, Any] = {
            key: sum(costs[key] for costs in by_agent.values())
            for key in ("turns", "prompt_tokens", "sampled_tokens")
        }
        if by_agent and all("usd" in costs for costs in by_agent.values()):
            whole["usd"] = sum(costs["usd"] for costs in by_agent.values())
        return whole | {"by_agent": by_agent}

    def latencies(self) -> dict[str, float]:
        """Return the mean seconds from a question to its answer: {"time/latency_s/solver": 1.5}."""
        return {
            f"time/latency_s/{name}": usage.seconds / usage.turns
            for name, (_, usage) in sorted(self.agents.items())
        }

    def _policy_cost(self, policy: str, taken: Taken) -> dict[str, Any]:
        row: dict[str, Any] = {
            "turns": taken.turns,
            "prompt_tokens": taken.prompt_tokens,
            "sampled_tokens": taken.completion_tokens,
        }
        if policy in self.prices:
            row["usd"] = self.prices[policy].cost(taken)
        return row
