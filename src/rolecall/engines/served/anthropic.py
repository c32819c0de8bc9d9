"""Asks Anthropic's messages API by the anthropic SDK."""

from __future__ import annotations

from typing import Any

from rolecall.config.served import AnthropicEngineConfig
from rolecall.core.interfaces.engine import Answer, Question, Sampling
from rolecall.core.json_types import JsonObject
from rolecall.core.optional import needs
from rolecall.engines.served.connection import dig, read_count, read_text
from rolecall.engines.served.provider import ProviderEngine, call_sdk, split_system
from rolecall.runtime.per_loop import PerLoop
from rolecall.runtime.spending import TokenCounts

with needs("anthropic", extra="coach"):
    import anthropic


class AnthropicEngine(ProviderEngine["anthropic.types.Message"]):
    """Claude."""

    options: AnthropicEngineConfig

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._clients = PerLoop(
            lambda: anthropic.AsyncAnthropic(
                api_key=self.key, base_url=self.options.url, max_retries=0, timeout=None
            )
        )

    async def send(self, question: Question, seed: int) -> anthropic.types.Message:
        """Send a question to the API, which has no seeds."""
        sampling, options = question.sampling, JsonObject()
        system, options["messages"] = split_system(question.messages)
        if system is not None:
            options["system"] = system
        if question.schema is not None:
            form = {"type": "json_schema", "schema": question.schema}
            options["output_config"] = {"format": form}
        if sampling.temperature != 1.0:  # the API's own
            options["extra_body"] = {"temperature": sampling.temperature}  # no SDK parameter
        return await call_sdk(
            self._clients.get().messages.create(
                model=self.options.model,
                max_tokens=sampling.max_tokens,
                **options,
            )
        )

    def read(
        self, content: anthropic.types.Message, sampling: Sampling
    ) -> tuple[Answer, TokenCounts]:
        blocks = dig(content, "content")
        texts = blocks if isinstance(blocks, list) else []
        reason = read_text(content, "stop_reason")
        answer = Answer(
            text="".join(
                read_text(block, "text") for block in texts if dig(block, "type") == "text"
            ),
            finish="length" if reason == "max_tokens" else "stop",
            refused=reason == "refusal",
        )
        read = read_count(content, "usage", "cache_read_input_tokens")
        prompt = read + read_count(content, "usage", "input_tokens")
        prompt += read_count(content, "usage", "cache_creation_input_tokens")
        thought = read_count(content, "usage", "output_tokens_details", "thinking_tokens")
        written = read_count(content, "usage", "output_tokens")
        return answer, TokenCounts(prompt, read, written, thought)

    async def close(self) -> None:
        client = self._clients.pop()
        if client is not None:
            await client.close()
