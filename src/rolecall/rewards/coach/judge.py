"""Scores one action: from the cache, by the provider or in this process."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from dataclasses import asdict
from weakref import WeakValueDictionary

from rolecall.core.types import Turn
from rolecall.rewards.coach import providers
from rolecall.rewards.coach.asking import ask
from rolecall.rewards.coach.cache import Cache, cache_key
from rolecall.rewards.coach.ledger import Ledger
from rolecall.rewards.coach.local import LocalCoach
from rolecall.rewards.coach.reading import read
from rolecall.rewards.coach.rendering import Action, Prompt, View, render
from rolecall.rewards.coach.scores import Score, Usage, Verdict
from rolecall.rewards.coach.wording import REMINDER, TEMPLATE
from rolecall.runtime.per_loop import PerLoop
from rolecall.runtime.retrying import Retrying, RetryLimits


class Judge:
    """One provider, asked about one action at a time; `limits` bound the requests for a score."""

    def __init__(
        self,
        access: providers.Access,
        ledger: Ledger,
        *,
        view: View,
        structured: bool,
        check_request: bool,
        ground_truth_roles: frozenset[str],
        limits: RetryLimits,
        format_retries: int,
        cache: Cache | None,
    ) -> None:
        self.access, self.ledger, self.view = access, ledger, view
        self.structured, self.check_request = structured, check_request
        self.ground_truth_roles = ground_truth_roles
        self.format_retries, self.cache = format_retries, cache
        self.local = LocalCoach()
        self._asking: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._retrying = Retrying(limits)
        self._providers = PerLoop(lambda: providers.connect(access))

    async def __call__(self, action: Action, usage: Usage) -> Score:
        """Raises CoachError; `usage` then holds what was spent all the same."""
        if self.access.provider == "local":
            return Score(await self.local.judge(action.turn), usage)
        if self.cache is None:
            return (await self._ask(action, usage))[0]
        key = self._key(action)
        # Attempts of a group often say the same: one of them asks, the others find its score.
        async with self._asking.setdefault(key, asyncio.Lock()):
            held = self.cache.get(key)
            if held is None:
                held, raw = await self._ask(action, usage)
                self.cache.put(key, held, raw=raw)
            return held

    async def _ask(self, action: Action, usage: Usage) -> tuple[Score, str]:
        """-> (the score, the answer as it came)."""
        agent, step = action.turn.agent, action.turn.episode.partition(":")[0]

        began: list[float] = []  # of each request; one waits for its turn before the first

        def before() -> None:
            began.append(time.monotonic())
            self.ledger.check(step)
            usage.tries += 1
            self.ledger.agents[agent].requests += 1

        verdict, raw = await ask(
            self._providers.get(),
            self._retrying,
            format_retries=self.format_retries,
            compose=lambda again: self._compose(action, again=again),
            before=before,
            after=lambda reply: self.ledger.add(reply, usage, agent=agent, step=step),
        )
        usage.latency_s = time.monotonic() - began[0]
        return Score(verdict, usage), raw

    def _compose(self, action: Action, *, again: bool) -> tuple[Prompt, Callable[[str], Verdict]]:
        nonce = secrets.token_hex(8)
        prompt = self._render(action, nonce=nonce)
        if again:
            prompt.user += f"\n\n{REMINDER}"
        truth = self._shows_truth(action.turn)
        expected = nonce if self.check_request else None
        return prompt, lambda text: read(text, expected, ground_truth=truth)

    def _render(self, action: Action, *, nonce: str) -> Prompt:
        return render(
            action,
            nonce=nonce,
            view=self.view,
            ground_truth=self._shows_truth(action.turn),
            structured=self.structured,
        )

    def _shows_truth(self, turn: Turn) -> bool:
        return turn.agent in self.ground_truth_roles

    def _key(self, action: Action) -> str:
        access, prompt = self.access, self._render(action, nonce="")
        sampling = [access.temperature, access.max_tokens]
        return cache_key(TEMPLATE, access.provider, access.model, sampling, asdict(prompt))
