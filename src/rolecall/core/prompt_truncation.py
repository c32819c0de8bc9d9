"""Cuts prompts that have more tokens than an agent's limit."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from rolecall.core.types import Ids


class PromptTruncation(BaseModel):
    """Cut longer prompts of an agent, such as those that grow from turn to turn."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    max_tokens: int = Field(ge=1, le=1_000_000_000)
    """Most tokens of a prompt, with the system prompt and the chat template around it."""
    side: Literal["left", "middle", "right"] = "left"
    """Remove tokens on this side: `left` keeps the end of the prompt, `right` its beginning, and
    `middle` one half of each."""

    def cut(self, prompt: Ids) -> Ids:
        """Return at most `max_tokens` of the tokens [P] of a prompt."""
        if len(prompt) <= self.max_tokens:
            return prompt
        num_first = {"left": 0, "middle": self.max_tokens // 2, "right": self.max_tokens}[self.side]
        num_last = self.max_tokens - num_first
        return np.concatenate([prompt[:num_first], prompt[len(prompt) - num_last :]])
