"""Asks any server with OpenAI's API, for agents that nobody trains: judges, opponents, teachers.

`answer` sends messages to `/chat/completions`. `generate` sends tokens to `/completions` of a
server that gives token ids back, as vLLM and SGLang do. Nothing is trained on its log-probs: at
another temperature than 1 they are those of the distribution sampled from only where vLLM was
started with `--logprobs-mode processed_logprobs`.
"""

from __future__ import annotations

import numpy as np

from rolecall.config.served import OpenAIEngineConfig
from rolecall.core.errors import InfrastructureError
from rolecall.core.interfaces.engine import Answer, Completion, Question, Request, Sampling
from rolecall.core.json_types import JsonObject, JsonValue
from rolecall.engines.served.connection import (
    CHECK_S,
    Connection,
    MalformedError,
    ServerError,
    dig,
    parse,
    read_count,
)
from rolecall.engines.served.provider import ProviderEngine, derive_seeds, write_message
from rolecall.runtime.spending import TokenCounts

REASONING = ("reasoning_content", "reasoning")  # where servers put what stands in <think>


class OpenAIEngine(ProviderEngine[bytes]):
    """Any server with OpenAI's API."""

    options: OpenAIEngineConfig
    asks = Connection
    server: Connection

    async def send(self, question: Question, seed: int) -> bytes:
        body: JsonObject = {
            "messages": [write_message(message) for message in question.messages],
            self.options.max_tokens_key: question.sampling.max_tokens,
        }
        if question.schema is not None:
            form = {"name": "answer", "strict": True, "schema": question.schema}
            body["response_format"] = {"type": "json_schema", "json_schema": form}
        if question.own_sampling:
            body |= {"temperature": None, "top_p": None}
        body = self._body(body, question.sampling, seed)
        return await self.server.send("POST", "/chat/completions", body)

    def read(self, content: bytes, sampling: Sampling) -> tuple[Answer, TokenCounts]:
        answer = parse(content)
        return _read_answer(answer, sampling), _read_counts(answer)

    async def generate(self, request: Request) -> list[Completion]:
        """Sample completions; raises ServerError if the server gives no token ids."""
        sampling = request.sampling
        body = {
            "prompt": request.prompt.tolist(),
            "max_tokens": sampling.max_tokens,
            "logprobs": 0,
            "return_token_ids": True,
        }
        if sampling.stop:
            body["include_stop_str_in_output"] = True
        calls = [
            self._completion(request, body, seed) for seed in derive_seeds(request.seed, request.n)
        ]
        return await self.server.gather_calls(request.id, calls)

    async def check(self) -> None:
        """Check that the server grants access.

        A server without a list of models is taken at its word.
        """
        try:
            deadline_s = min(CHECK_S, self.options.timeout_s)
            await self.server.tell("GET", "/models", deadline_s=deadline_s)
        except ServerError as error:
            if error.status in (401, 402, 403):
                raise

    async def close(self) -> None:
        await self.server.close()

    async def _completion(self, request: Request, body: JsonObject, seed: int) -> Completion:
        def read(found: JsonValue) -> Completion:
            completion = _read_completion(found)
            completion.usage = self.pay(request.policy, _read_counts(found))
            return completion

        body = self._body(body, request.sampling, seed)
        completion = await self.server.ask("POST", "/completions", body=body, read=read)
        if not len(completion.tokens):
            raise InfrastructureError(f"the server at {self.options.url} sampled no token")
        return completion

    def _body(self, given: JsonObject, sampling: Sampling, seed: int) -> JsonObject:
        """Return a request's body: four keys that all servers know, and others only if they are
        set.
        """
        body = {
            "model": self.options.model,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "seed": seed % 2**31,
            **given,
        }
        if sampling.stop:
            body["stop"] = list(sampling.stop)
        if sampling.stop_token_ids:
            body["stop_token_ids"] = list(sampling.stop_token_ids)
        if sampling.top_k:
            body["top_k"] = sampling.top_k
        body |= self.options.extra
        return {name: value for name, value in body.items() if value is not None}


def _read_counts(found: JsonValue) -> TokenCounts:
    return TokenCounts(
        read_count(found, "usage", "prompt_tokens"),
        read_count(found, "usage", "prompt_tokens_details", "cached_tokens"),
        read_count(found, "usage", "completion_tokens"),
        read_count(found, "usage", "completion_tokens_details", "reasoning_tokens"),
    )


def _read_answer(found: JsonValue, sampling: Sampling) -> Answer:
    """Read the first choice of a chat completion; raises MalformedError."""
    choice = dig(found, "choices", 0)
    message = dig(choice, "message")
    if not isinstance(message, dict):
        raise MalformedError(f"no choices[0].message{_instead(found)}")
    finish = _finish(choice)
    texts = {name: message.get(name) for name in ("content", "refusal", *REASONING)}
    for name, text in texts.items():
        if text is not None and not isinstance(text, str):
            raise MalformedError(f"choices[0].message.{name} is no text")
    content = texts["content"] or texts["refusal"] or ""
    matched = dig(choice, "stop_reason") or dig(choice, "matched_stop")
    if matched in sampling.stop and not content.endswith(matched):
        content += matched  # as our own engines do: what ends a turn stays in it
    thought = next((texts[name] for name in REASONING if texts[name]), "")
    return Answer(
        text=f"<think>{thought}</think>{content}" if thought else content,
        finish="length" if finish == "length" else "stop",
        refused=bool(texts["refusal"]) or finish == "content_filter",
    )


def _read_completion(found: JsonValue) -> Completion:
    """Read the first choice of a completion with its tokens; raises MalformedError, ServerError."""
    choice = dig(found, "choices", 0)
    if not isinstance(choice, dict):
        raise MalformedError(f"no choices[0]{_instead(found)}")
    ids, logprobs = choice.get("token_ids"), dig(choice, "logprobs", "token_logprobs")
    if ids is None or logprobs is None:
        raise ServerError(
            "the server gives no token_ids and logprobs of what it samples: set token_ids=false "
            "and remove the policy's base, to send it messages instead"
        )
    try:
        tokens = np.array(ids, dtype=np.int32).reshape(-1)
        values = np.array(logprobs, dtype=np.float32).reshape(-1)
    except (TypeError, ValueError, OverflowError) as error:
        raise MalformedError(f"token_ids or token_logprobs are no numbers: {error}") from error
    if len(tokens) != len(values):
        raise MalformedError(f"{len(tokens)} token_ids with {len(values)} log-probs")
    finish = "length" if _finish(choice) == "length" else "stop"
    return Completion(tokens, values, np.zeros(len(tokens), np.int32), finish)


def _finish(choice: JsonValue) -> JsonValue:
    """Return why the answer ended. Raises MalformedError where the server cut it short itself."""
    finish = dig(choice, "finish_reason")
    if finish in ("abort", "error"):
        raise MalformedError(f"the server ended it: finish_reason is {finish}")
    return finish


def _instead(found: JsonValue) -> str:
    """Return the error that some servers send with status 200."""
    message = dig(found, "error", "message")
    return f", but an error: {message}" if isinstance(message, str) else ""
