"""Sends questions to Anthropic's messages API by the anthropic SDK."""

from __future__ import annotations

from typing import Any

from rolecall.core.optional import needs
from rolecall.rewards.coach.providers import (
    Access,
    Provider,
    Reply,
    dig,
    read_count,
    read_text,
)
from rolecall.rewards.coach.rendering import Prompt

with needs("anthropic", extra="coach"):
    import anthropic


class AnthropicCoach:
    def __init__(self, access: Access) -> None:
        self.access = access
        self.client = anthropic.AsyncAnthropic(
            api_key=access.key, base_url=access.base_url, max_retries=0, timeout=None
        )

    async def ask(self, prompt: Prompt) -> Reply:
        options: dict[str, Any] = {}
        if self.access.temperature is not None:
            options["extra_body"] = {"temperature": self.access.temperature}  # no SDK parameter
        if prompt.schema is not None:
            options["output_config"] = {"format": {"type": "json_schema", "schema": prompt.schema}}
        answer = await self.client.messages.create(
            model=self.access.model,
            max_tokens=self.access.max_tokens,
            system=prompt.system,
            messages=[{"role": "user", "content": prompt.user}],
            **options,
        )
        content = dig(answer, "content")
        blocks = content if isinstance(content, list) else []
        read = read_count(answer, "usage", "cache_read_input_tokens")
        written = read_count(answer, "usage", "cache_creation_input_tokens")
        return Reply(
            text="".join(read_text(b, "text") for b in blocks if dig(b, "type") == "text"),
            truncated=read_text(answer, "stop_reason") == "max_tokens",
            prompt_tokens=read_count(answer, "usage", "input_tokens") + read + written,
            cached_tokens=read,
            completion_tokens=read_count(answer, "usage", "output_tokens"),
            reasoning_tokens=read_count(
                answer, "usage", "output_tokens_details", "thinking_tokens"
            ),
        )


def connect(access: Access) -> Provider:
    return AnthropicCoach(access)
