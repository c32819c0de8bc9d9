"""Asks Gemini, with an API key or through Vertex AI, by the google-genai SDK.

Vertex AI without a key uses the application default credentials and the usual variables
GOOGLE_CLOUD_PROJECT and GOOGLE_CLOUD_LOCATION ("global" if there is none).
"""

from __future__ import annotations

import os
from typing import Any

from rolecall.config.served import GoogleEngineConfig
from rolecall.core.interfaces.engine import Answer, Question, Sampling
from rolecall.core.optional import needs
from rolecall.engines.served.connection import ServerError, dig, read_count, read_text
from rolecall.engines.served.provider import ProviderEngine, call_sdk, split_system
from rolecall.runtime.per_loop import PerLoop
from rolecall.runtime.spending import TokenCounts

with needs("google-genai", extra="coach"):
    from google import genai
    from google.auth.exceptions import DefaultCredentialsError
    from google.genai import types

ROLES = {"assistant": "model"}  # what Gemini calls the others is what we call them


class GoogleEngine(ProviderEngine["types.GenerateContentResponse"]):
    """Gemini."""

    options: GoogleEngineConfig

    def __init__(self, *arguments: Any, **named: Any) -> None:
        """Connect to Vertex AI; raises ValueError without a key and a project."""
        super().__init__(*arguments, **named)
        if self.key is None and "GOOGLE_CLOUD_PROJECT" not in os.environ:
            raise ValueError(
                "vertex: without a key it needs a project; set the environment variable "
                "GOOGLE_CLOUD_PROJECT, or name the variable of an API key by key_env"
            )
        self._clients = PerLoop(self._connect)

    def _connect(self) -> genai.Client:
        project = os.environ["GOOGLE_CLOUD_PROJECT"] if self.key is None else None
        location = os.environ.get("GOOGLE_CLOUD_LOCATION", "global")
        return genai.Client(
            vertexai=self.options.vertex,
            api_key=self.key,
            project=project,  # named, or the SDK sends no credentials to an address of one's own
            location=location if project else None,
            http_options=types.HttpOptions(
                base_url=self.options.url or None,
                retry_options=types.HttpRetryOptions(attempts=1),
            ),
        )

    async def send(self, question: Question, seed: int) -> types.GenerateContentResponse:
        return await call_sdk(self._generate(question))

    async def _generate(self, question: Question) -> types.GenerateContentResponse:
        system, messages = split_system(question.messages)
        sampling, schema = question.sampling, question.schema
        contents = [
            types.Content(
                role=ROLES.get(message["role"], message["role"]),
                parts=[types.Part(text=message["content"])],
            )
            for message in messages
        ]
        budget = self.options.thinking_budget
        try:
            return await self._clients.get().aio.models.generate_content(
                model=self.options.model,
                contents=contents,
                config=types.GenerateContentConfig(
                    system_instruction=system,
                    temperature=None if question.own_sampling else sampling.temperature,
                    max_output_tokens=sampling.max_tokens,
                    response_mime_type="application/json" if schema is not None else None,
                    response_json_schema=schema,
                    thinking_config=(
                        None if budget is None else types.ThinkingConfig(thinking_budget=budget)
                    ),
                ),
            )
        except DefaultCredentialsError as error:
            raise ServerError(f"no credentials for Vertex AI: {error}") from error

    def read(
        self, content: types.GenerateContentResponse, sampling: Sampling
    ) -> tuple[Answer, TokenCounts]:
        parts = dig(content, "candidates", 0, "content", "parts") or []
        reason = read_text(content, "candidates", 0, "finish_reason")
        answer = Answer(
            text="".join(read_text(item, "text") for item in parts if not dig(item, "thought")),
            finish="length" if reason == "MAX_TOKENS" else "stop",
            refused=reason == "SAFETY",
        )
        counts = "usage_metadata"
        thoughts = read_count(content, counts, "thoughts_token_count")
        return answer, TokenCounts(
            read_count(content, counts, "prompt_token_count"),
            read_count(content, counts, "cached_content_token_count"),
            read_count(content, counts, "candidates_token_count") + thoughts,
            thoughts,
        )

    async def close(self) -> None:
        client = self._clients.pop()
        if client is not None:
            await client.aio.aclose()
