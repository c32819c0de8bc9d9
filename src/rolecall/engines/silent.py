"""An engine that says nothing: it stands for an agent that is removed from its team."""

from __future__ import annotations

import numpy as np

from rolecall.core.interfaces.engine import Answer, Completion, Engine, Question, Request
from rolecall.core.types import Floats, Ids

NOTHING_READ: dict[str, float] = {"prompt_tokens": 0, "completion_tokens": 0}


class SilentEngine(Engine):
    """Ends each answer before its first word."""

    async def generate(self, request: Request) -> list[Completion]:
        tokens = np.zeros(0, dtype=np.int32)
        nothing = Completion(tokens, tokens.astype(np.float32), tokens, "stop", NOTHING_READ)
        return [nothing] * request.n

    async def answer(self, question: Question) -> list[Answer]:
        return [Answer("", "stop", usage=NOTHING_READ)] * question.n

    async def cancel(self, request_id: str) -> None:
        return

    async def score(self, policy: str, prompt: Ids, tokens: Ids, *, temperature: float) -> Floats:
        raise TypeError("an agent that says nothing has no log-probs")
