"""Counts what answers of paid servers cost, and says when a budget is spent.

Requests under way are not cut short, so a budget is overdrawn by at most as many answers as are
under way at once.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

notices = logging.getLogger("rolecall.notices")
UNSETTLED_S = 1.0  # for which the newest answers may be counted in memory only


class Counted(Protocol):
    """Tokens of answers."""

    @property
    def prompt_tokens(self) -> int:
        """Tokens of the prompt, cached ones included."""
        ...

    @property
    def cached_tokens(self) -> int:
        """Tokens of the prompt that the server had cached."""
        ...

    @property
    def completion_tokens(self) -> int:
        """Tokens of the answer, reasoning included."""
        ...


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """The tokens of one answer."""

    prompt_tokens: int  # cached ones included
    cached_tokens: int
    completion_tokens: int  # reasoning included
    reasoning_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Prices:
    """USD for a million tokens. Raises ValueError for a negative one."""

    prompt: float = 0.0
    cached: float | None = None  # of prompt tokens that the provider had cached; None: as prompt
    completion: float = 0.0

    def __post_init__(self) -> None:
        if min(self.prompt, self.cached or 0.0, self.completion) < 0:
            raise ValueError(f"prices cannot be negative, got {self}")

    def cost(self, reply: Counted) -> float:
        """Return the cost in USD: 1,000 prompt tokens at 2.0, 400 of them cached at 0.5 ->
        0.0014."""
        cached = self.prompt if self.cached is None else self.cached
        fresh = reply.prompt_tokens - reply.cached_tokens
        total = fresh * self.prompt + reply.cached_tokens * cached
        return (total + reply.completion_tokens * self.completion) / 1e6


@dataclass(frozen=True, slots=True)
class Budget:
    """The most that may be spent. None: no bound. Raises ValueError for a bound that is not above
    0.
    """

    usd: float | None
    tokens: int | None  # prompt and completion

    def __post_init__(self) -> None:
        for unit, bound in (("USD", self.usd), ("tokens", self.tokens)):
            if bound is not None and not bound > 0:
                raise ValueError(
                    f"a budget in {unit} must be above 0 (it is {bound:g}); write more, or leave "
                    "it out"
                )


@dataclass(slots=True)
class Spent:
    """The money and tokens spent so far."""

    usd: float = 0.0
    tokens: int = 0

    def add(self, usd: float, tokens: int) -> None:
        self.usd += usd
        self.tokens += tokens

    def find_reached(self, budget: Budget) -> str:
        """Return the bound that is reached, "5 USD" or "1000 tokens"; "" while none is."""
        if budget.usd is not None and self.usd >= budget.usd:
            return f"{budget.usd:g} USD"
        if budget.tokens is not None and self.tokens >= budget.tokens:
            return f"{budget.tokens} tokens"
        return ""


class Account:
    """Counts what one engine's answers cost over a run, in a file once the run has a folder."""

    def __init__(self, prices: Mapping[str, Prices], budget: Budget) -> None:
        """`prices` by policy; the answers of others cost nothing."""
        self.prices, self.budget = prices, budget
        self.spent = Spent()
        self._file: Path | None = None
        self._settled_at = 0.0  # when the file was last on disk

    def keep(self, file: Path) -> None:
        """Add what the file says that the run has spent before, and keep it up to date."""
        if file.exists():
            try:
                record = json.loads(file.read_text(encoding="utf-8"))
                self.spent.add(record["usd"] + 0.0, record["tokens"] + 0)
            except (ValueError, TypeError, KeyError):
                notices.warning(
                    "%s is damaged: what the run has spent before is not counted; write "
                    '{"usd": 1.5, "tokens": 1000} there if a budget must hold', file,
                )  # fmt: skip
        self._file = file
        if self.spent.tokens:
            self._write()

    def add(self, policy: str, counts: Counted) -> float:
        """Count an answer of a policy, and return what it cost, in USD."""
        cost = self.prices[policy].cost(counts) if policy in self.prices else 0.0
        self.spent.add(cost, counts.prompt_tokens + counts.completion_tokens)
        self._write()
        return cost

    def _write(self) -> None:
        if self._file is not None:
            aside = self._file.with_suffix(".tmp")
            with aside.open("w", encoding="utf-8") as file:
                file.write(json.dumps(asdict(self.spent)))
                if time.monotonic() - self._settled_at >= UNSETTLED_S:
                    file.flush()
                    os.fsync(file.fileno())  # or a machine that loses its power has an empty one
                    self._settled_at = time.monotonic()
            os.replace(aside, self._file)
