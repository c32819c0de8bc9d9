"""Sends questions to OpenAI, or any server with its chat completions, by the openai SDK."""

from __future__ import annotations

from typing import Any

from rolecall.core.optional import needs
from rolecall.rewards.coach.providers import Access, Provider, Reply, read_count, read_text
from rolecall.rewards.coach.rendering import Prompt

with needs("openai", extra="coach"):
    import openai


class OpenAICoach:
    def __init__(self, access: Access) -> None:
        self.access = access
        self.client = openai.AsyncOpenAI(
            api_key=access.key or "none", base_url=access.base_url, max_retries=0, timeout=None
        )

    async def ask(self, prompt: Prompt) -> Reply:
        options: dict[str, Any] = {}
        if self.access.temperature is not None:
            options["temperature"] = self.access.temperature
        if prompt.schema is not None:
            form = {"name": "score", "strict": True, "schema": prompt.schema}
            options["response_format"] = {"type": "json_schema", "json_schema": form}
        answer = await self.client.chat.completions.create(
            model=self.access.model,
            messages=[
                {"role": "system", "content": prompt.system},
                {"role": "user", "content": prompt.user},
            ],
            max_completion_tokens=self.access.max_tokens,
            **options,
        )
        return Reply(
            text=read_text(answer, "choices", 0, "message", "content"),
            truncated=read_text(answer, "choices", 0, "finish_reason") == "length",
            prompt_tokens=read_count(answer, "usage", "prompt_tokens"),
            cached_tokens=read_count(answer, "usage", "prompt_tokens_details", "cached_tokens"),
            completion_tokens=read_count(answer, "usage", "completion_tokens"),
            reasoning_tokens=read_count(
                answer, "usage", "completion_tokens_details", "reasoning_tokens"
            ),
        )


def connect(access: Access) -> Provider:
    return OpenAICoach(access)
