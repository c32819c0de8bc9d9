"""Decides whether a maths answer equals the truth, and says how that was found.

Plain rules decide most pairs at once. The rest goes to a child process with a hard time and
memory limit, because symbolic work on model text may never end. A reference that the child cannot
read either is compared as text: equal or not.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from rolecall.grading.math.answers import references
from rolecall.grading.math.process import COMMAND, JudgeError, MathProcess
from rolecall.grading.math.rules import align, quick_pair

Reason = Literal["rules", "symbolic", "text", "timeout", "memory", "crash"]

Found = TypeVar("Found")
MAX_CACHED = 10_000  # verdicts
UNRELATED = "-987123"  # where rules can tell a reference from it, they can read the reference


@dataclass(frozen=True, slots=True)
class Verdict:
    equal: bool
    # text: no parser reads the reference; timeout, memory and crash: the answer broke the worker.
    reason: Reason


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
            ("rules", "symbolic", "text", "timeout", "memory", "crash"), 0
        )
        self._process = MathProcess(time_s=time_s, memory_bytes=memory_bytes, command=command)
        self._cache: dict[tuple[str, str], Verdict] = {}
        self._readable: dict[str, bool] = {}  # of references that only the worker could read
        self._lock = threading.Lock()
        # One thread owns the child: Linux ends a child with the thread that started it.
        self._thread: ThreadPoolExecutor | None = None

    async def equal(self, given: str, truth: object) -> Verdict:
        """Return whether `given` equals any reference of `truth`.

        Raises ValueError for a truth without an answer and JudgeError if the worker cannot
        start, or no longer copes with a reference that it has read before.
        """
        verdict = await self._judge(given, references(truth))
        with self._lock:
            self.counts[verdict.reason] += 1
        return verdict

    def unreadable(self, truths: Iterable[object], *, limit_s: float) -> list[str]:
        """Return references of `truths` that nothing can read, so that text decides; it blocks.

        Looks for `limit_s` at most: the rest is checked when it is first needed.
        """
        until = time.monotonic() + limit_s
        unread = []
        for reference in dict.fromkeys(r for truth in truths for r in references(truth)):
            answer, aligned = align(UNRELATED, reference)
            if quick_pair(answer, aligned) is not None:
                continue
            if time.monotonic() > until:
                break
            if not self._submit(self._reads, aligned).result():
                unread.append(reference)
        return unread

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
                symbolic = await self._symbolic(pair)
                if symbolic.equal:
                    return symbolic
                verdict = symbolic if verdict.reason in ("rules", "symbolic") else verdict
        return verdict

    async def _symbolic(self, pair: tuple[str, str]) -> Verdict:
        cached = self._cache.get(pair)
        if cached is not None:
            return cached
        return await asyncio.wrap_future(self._submit(self._ask, pair))

    def _submit(self, work: Callable[[Any], Found], asked: Any) -> Future[Found]:
        """Do it in the thread that owns the worker."""
        with self._lock:
            if self._thread is None:
                self._thread = ThreadPoolExecutor(1, thread_name_prefix="math-judge")
            return self._thread.submit(work, asked)

    def _ask(self, pair: tuple[str, str]) -> Verdict:
        """Return, in the judge's thread, the worker's verdict, or what the answer did to the
        worker.
        """
        if pair in self._cache:
            return self._cache[pair]
        verdict = self._compared(*pair)
        if len(self._cache) >= MAX_CACHED:
            self._cache.pop(next(iter(self._cache)))
        self._cache[pair] = verdict
        return verdict

    def _compared(self, given: str, truth: str) -> Verdict:
        as_text = Verdict(False, "text")  # the same text was found equal before
        if len(truth) > self.max_chars or self._readable.get(truth) is False:
            return as_text
        outcome = self._process.ask(given, truth)
        if outcome == "crash":  # once may be the machine's doing, twice is the answer's
            outcome = self._process.ask(given, truth)
        if outcome == "equal" or outcome == "different":
            return Verdict(outcome == "equal", "symbolic")
        is_readable = self._readable.get(truth, False)
        if not self._reads(truth):
            if is_readable:
                raise JudgeError(f"reference {truth!r} was read before and is not read now")
            return as_text
        assert outcome == "timeout" or outcome == "memory" or outcome == "crash"
        return Verdict(False, outcome)

    def _reads(self, truth: str) -> bool:
        """Return whether the worker can read a reference alone; a busy machine gets a second
        chance.
        """
        alone = "unreadable"
        if len(truth) <= self.max_chars:
            alone = self._process.ask(None, truth)
            if alone not in ("readable", "unreadable"):
                alone = self._process.ask(None, truth)
        self._readable[truth] = alone == "readable"
        return self._readable[truth]
