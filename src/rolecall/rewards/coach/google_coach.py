"""Sends questions to Gemini, with an API key or through Vertex AI, by the google-genai SDK.

Vertex AI without a key uses the application default credentials and the usual variables
GOOGLE_CLOUD_PROJECT and GOOGLE_CLOUD_LOCATION ("global" if there is none).
"""

from __future__ import annotations

import os

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
from rolecall.rewards.coach.scores import CoachConfigError

with needs("google-genai", extra="coach"):
    from google import genai
    from google.auth.exceptions import DefaultCredentialsError
    from google.genai import types


class GoogleCoach:
    def __init__(self, access: Access) -> None:
        self.access = access
        project = os.environ["GOOGLE_CLOUD_PROJECT"] if access.key is None else None
        location = os.environ.get("GOOGLE_CLOUD_LOCATION", "global")
        self.client = genai.Client(
            vertexai=access.provider == "vertex",
            api_key=access.key,
            project=project,  # named, or the SDK sends no credentials to a base_url
            location=location if project else None,
            http_options=types.HttpOptions(
                base_url=access.base_url, retry_options=types.HttpRetryOptions(attempts=1)
            ),
        )

    async def ask(self, prompt: Prompt) -> Reply:
        try:
            answer = await self._generate(prompt)
        except DefaultCredentialsError as error:
            raise CoachConfigError(f"no credentials for Vertex AI: {error}") from error
        parts = dig(answer, "candidates", 0, "content", "parts") or []
        counts = "usage_metadata"
        thoughts = read_count(answer, counts, "thoughts_token_count")
        return Reply(
            text="".join(read_text(item, "text") for item in parts if not dig(item, "thought")),
            truncated=read_text(answer, "candidates", 0, "finish_reason") == "MAX_TOKENS",
            prompt_tokens=read_count(answer, counts, "prompt_token_count"),
            cached_tokens=read_count(answer, counts, "cached_content_token_count"),
            completion_tokens=read_count(answer, counts, "candidates_token_count") + thoughts,
            reasoning_tokens=thoughts,
        )

    async def _generate(self, prompt: Prompt) -> types.GenerateContentResponse:
        return await self.client.aio.models.generate_content(
            model=self.access.model,
            contents=prompt.user,
            config=types.GenerateContentConfig(
                system_instruction=prompt.system,
                temperature=self.access.temperature,
                max_output_tokens=self.access.max_tokens,
                response_mime_type="application/json" if prompt.schema is not None else None,
                response_json_schema=prompt.schema,
            ),
        )


def connect(access: Access) -> Provider:
    return GoogleCoach(access)
