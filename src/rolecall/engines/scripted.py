"""Answers requests with a Python function, for demonstrations, tests and replays."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rolecall.agents.chat_template import Tokenizer
from rolecall.core.interfaces.engine import Completion, Engine, Request
from rolecall.core.types import Floats, Ids

Reply = Callable[[Request], str]


class ScriptedEngine(Engine):
    """Says what `reply(request)` returns, as tokens of the tokenizer plus its end token."""

    def __init__(self, tokenizer: Tokenizer, reply: Reply) -> None:
        self.tokenizer = tokenizer
        self.reply = reply

    async def generate(self, request: Request) -> list[Completion]:
        return [self._completion(self.reply(request), request) for _ in range(request.n)]

    def _completion(self, text: str, request: Request) -> Completion:
        ids = [*self.tokenizer(text, add_special_tokens=False)["input_ids"]]
        ids.append(self.tokenizer.eos_token_id)
        limit = request.sampling.max_tokens
        tokens = np.array(ids[:limit], dtype=np.int32)
        return Completion(
            tokens=tokens,
            logprobs=np.zeros(len(tokens), dtype=np.float32),
            versions=np.zeros(len(tokens), dtype=np.int32),
            finish="stop" if len(ids) <= limit else "length",
        )

    async def cancel(self, request_id: str) -> None:
        return None

    async def score(self, policy: str, prompt: Ids, tokens: Ids, *, temperature: float) -> Floats:
        return np.zeros(len(tokens), dtype=np.float32)
