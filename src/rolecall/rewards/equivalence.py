"""An answer and a truth come in, whether they are equal and how that was found goes out.

Plain rules decide most pairs at once. The rest goes to a child process with a hard time and
memory limit, because symbolic work on model text may never end.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

from rolecall.rewards.answers import references
from rolecall.rewards.math_process import COMMAND, JudgeError, MathProcess
from rolecall.rewards.rules import align, quick_pair

Reason = Literal["rules", "symbolic", "timeout", "memory", "crash"]

MAX_CACHED = 10_000  # verdicts


@dataclass(frozen=True, slots=True)
class Verdict:
    equal: bool
    reason: Reason  # timeout, memory and crash: the answer broke the worker, so not equal


class MathJudge:
    """Compares answers to maths problems; safe in any thread and any event loop.

    `counts` holds how many verdicts had each reason.
    """

    def __init__(
        self,
        *,
        time_s: float = 2.0,  # wall time of one comparison
        memory_bytes: int = 1 << 30,  # address space that one comparison may add
        max_chars: int = 2000,  # a longer answer is not equal
        command: Sequence[str] = COMMAND,
    ) -> None:
        self.max_chars = max_chars
        self.counts: dict[Reason, int] = dict.fromkeys(
            ("rules", "symbolic", "timeout", "memory", "crash"), 0
        )
        self._process = MathProcess(time_s=time_s, memory_bytes=memory_bytes, command=command)
        self._cache: dict[tuple[str, str], Verdict] = {}
        self._lock = threading.Lock()
        # One thread owns the child: Linux ends a child with the thread that started it.
        self._thread: ThreadPoolExecutor | None = None

    async def equal(self, given: str, truth: object) -> Verdict:
        """Whether `given` equals any reference of `truth`.

        Raises ValueError for a truth without an answer and JudgeError if the worker cannot
        start or cannot cope with the reference alone.
        """
        verdict = await self._judge(given, references(truth))
        with self._lock:
            self.counts[verdict.reason] += 1
        return verdict

    async def close(self) -> None:
        """End the worker; a later `equal` starts a new one."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None:
            await asyncio.wrap_future(thread.submit(self._process.kill))
            thread.shutdown(wait=False)

    async def _judge(self, given: str, accepted: list[str]) -> Verdict:
        if given in accepted:
            return Verdict(True, "rules")
        if len(given) > self.max_chars:
            return Verdict(False, "rules")
        pairs = [align(given, reference) for reference in accepted]
        decided = [quick_pair(*pair) for pair in pairs]
        if True in decided:
            return Verdict(True, "rules")
        verdict = Verdict(False, "rules")
        for pair, ruling in zip(pairs, decided, strict=True):
            if ruling is None:
                found = await self._symbolic(pair)
                if found.equal:
                    return found
                verdict = found if verdict.reason in ("rules", "symbolic") else verdict
        return verdict

    async def _symbolic(self, pair: tuple[str, str]) -> Verdict:
        cached = self._cache.get(pair)
        if cached is not None:
            return cached
        with self._lock:
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, thread_name_prefix="math-judge")
            future = self._thread.submit(self._ask, pair)
        return await asyncio.wrap_future(future)

    def _ask(self, pair: tuple[str, str]) -> Verdict:
        """In the judge's thread: the worker's verdict, or what the answer did to the worker."""
        if pair in self._cache:
            return self._cache[pair]
        given, truth = pair
        if len(truth) > self.max_chars:
            raise JudgeError(f"a reference of {len(truth)} characters is too long: {truth[:50]}...")
        outcome = self._process.ask(given, truth)
        if outcome == "crash":  # once may be the machine's doing, twice is the answer's
            outcome = self._process.ask(given, truth)
        if outcome == "equal" or outcome == "different":
            verdict = Verdict(outcome == "equal", "symbolic")
        else:
            alone = self._process.ask(None, truth)
            if alone != "readable":
                raise JudgeError(f"reference {truth!r} alone cannot be judged: {alone}")
            assert outcome == "timeout" or outcome == "memory" or outcome == "crash"
            verdict = Verdict(False, outcome)
        if len(self._cache) >= MAX_CACHED:
            self._cache.pop(next(iter(self._cache)))
        self._cache[pair] = verdict
        return verdict
