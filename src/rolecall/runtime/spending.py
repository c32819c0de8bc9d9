"""Counts what answers of paid servers cost, and says when a budget is spent.

Requests under way are not cut short, so a budget is overdrawn by at most as many answers as are
under way at once.
"""

from __future__ import annotations

import json
import logging
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

notices = logging.getLogger("rolecall.notices")
UNSETTLED_S = 1.0  # for which the newest answers may be counted in memory only
MOST_PARTS = 64  # of which an account knows what was spent; steps under way are fewer


class Counted(Protocol):
    """Tokens of one answer."""

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
class Prices:
    """USD for a million tokens. Raises ValueError for a negative one."""

    prompt: float = 0.0
    cached: float | None = None  # of prompt tokens that the provider had cached; None: as prompt
    completion: float = 0.0

    def __post_init__(self) -> None:
        if min(self.prompt, self.cached or 0.0, self.completion) < 0:
            raise ValueError(f"prices cannot be negative, got {self}")

    def cost(self, reply: Counted) -> float:
        """1,000 prompt tokens at 2.0, 400 of them cached at 0.5 -> 0.0014 USD."""
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
    """Counts what one server's answers cost over a run, in a file once the run has a folder.

    What is spent for a part of the run, such as a step, is counted beside the whole.
    """

    def __init__(self, prices: Prices, budget: Budget) -> None:
        self.prices, self.budget = prices, budget
        self.spent = Spent()
        self.parts: dict[str, Spent] = {}  # the newest ones, those last added to at the end
        self._file: Path | None = None
        self._settled_at = 0.0  # when the file was last on disk

    def keep(self, file: Path) -> None:
        """Add what the file says that the run has spent before, and keep it up to date."""
        if file.exists():
            try:
                record = json.loads(file.read_text(encoding="utf-8"))
                parts = {name: Spent(**spent) for name, spent in record.pop("parts", {}).items()}
                before = Spent(**record)
                before.add(0.0, 0)  # raises where these are no numbers
            except (ValueError, TypeError, AttributeError):
                notices.warning(
                    "%s is damaged: what the run has spent before is not counted; write "
                    '{"usd": 1.5, "tokens": 1000} there if a budget must hold', file,
                )  # fmt: skip
            else:
                self.spent.add(**asdict(before))
                for name, spent in parts.items():
                    self.get_part(name).add(**asdict(spent))
        self._file = file
        if self.spent.tokens:
            self._write()

    def add(self, reply: Counted, *, part: str = "") -> float:
        """Count an answer, and return what it cost, in USD."""
        cost = self.prices.cost(reply)
        tokens = reply.prompt_tokens + reply.completion_tokens
        self.spent.add(cost, tokens)
        if part:
            self.get_part(part).add(cost, tokens)
            self.parts[part] = self.parts.pop(part)
            while len(self.parts) > MOST_PARTS:
                del self.parts[next(iter(self.parts))]
        self._write()
        return cost

    def get_part(self, part: str) -> Spent:
        """Return what was spent for a part."""
        return self.parts.setdefault(part, Spent())

    def _write(self) -> None:
        if self._file is not None:
            record = asdict(self.spent)
            if self.parts:
                record["parts"] = {name: asdict(spent) for name, spent in self.parts.items()}
            aside = self._file.with_suffix(".tmp")
            with aside.open("w", encoding="utf-8") as file:
                file.write(json.dumps(record))
                if time.monotonic() - self._settled_at >= UNSETTLED_S:
                    file.flush()
                    os.fsync(file.fileno())  # or a machine that loses its power has an empty one
                    self._settled_at = time.monotonic()
            os.replace(aside, self._file)
