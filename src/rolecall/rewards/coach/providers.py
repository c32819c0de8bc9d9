"""Finds and connects the coach's provider by name; each SDK has a file of its own."""

from __future__ import annotations

import importlib
import os
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol

from rolecall.core.errors import nearest
from rolecall.rewards.coach.rendering import Prompt
from rolecall.runtime.secret_texts import remember_secret

# provider -> variable of its key; "local" needs none and is asked nothing
KEYS = {
    "openai": "OPENAI_API_KEY",
    "anthropic": "ANTHROPIC_API_KEY",
    "google": "GEMINI_API_KEY",
    "vertex": "",
    "local": "",
}
MODULES = {"openai": "openai", "anthropic": "anthropic", "google": "google", "vertex": "google"}


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer of a provider, its counts in one meaning for all."""

    text: str  # empty where the provider gave none, as after a refusal
    truncated: bool  # ended by the length limit
    prompt_tokens: int  # cached ones included
    cached_tokens: int
    completion_tokens: int  # reasoning included
    reasoning_tokens: int


@dataclass(frozen=True, slots=True)
class Access:
    """The model, key and options with which a provider is asked."""

    provider: str
    model: str
    key: str | None  # None: the provider finds its own credentials, or needs none
    base_url: str | None
    temperature: float | None  # None: the model's own; some models take no other
    max_tokens: int


class Provider(Protocol):
    access: Access

    async def ask(self, prompt: Prompt) -> Reply:
        """One request, never repeated. Raises whatever the SDK raises."""
        ...


def check_provider(name: str) -> None:
    """Raises ValueError with the nearest name."""
    if name not in KEYS:
        raise ValueError(f"there is no coach provider {name!r}; {nearest(name, list(KEYS))}")


def find_key(provider: str, *, key_env: str | None, base_url: str | None) -> str | None:
    """Return the API key. Raises ValueError that names the missing variable.

    Without `key_env`, a server at an address of one's own gets no key: not one meant for others.
    """
    own = provider == "openai" and base_url is not None
    variable = key_env or ("" if own else KEYS[provider])
    if provider == "vertex" and not variable and "GOOGLE_CLOUD_PROJECT" not in os.environ:
        raise ValueError(
            "the coach's provider 'vertex' needs a project: set GOOGLE_CLOUD_PROJECT, or name the "
            "variable of an API key by key_env"
        )
    if not variable:
        return None
    key = os.environ.get(variable, "")
    if not key:
        raise ValueError(
            f"the coach's provider {provider!r} needs a key: the environment variable {variable} "
            "is not set (key_env names another one)"
        )
    remember_secret(key)
    return key


def load(provider: str) -> ModuleType:
    """The file of a provider's SDK. Raises ConfigError naming the extra to install."""
    return importlib.import_module(f"rolecall.rewards.coach.{MODULES[provider]}_coach")


def connect(access: Access) -> Provider:
    """Return a client for the running event loop."""
    provider: Provider = load(access.provider).connect(access)
    return provider


def dig(value: Any, *steps: str | int) -> Any:
    """Return the value at a path of attributes and indices; None where an answer lacks a part."""
    for step in steps:
        try:
            value = value[step] if isinstance(step, int) else getattr(value, step)
        except (AttributeError, IndexError, KeyError, TypeError):
            return None
    return value


def read_text(value: Any, *steps: str | int) -> str:
    text = dig(value, *steps)
    return text if isinstance(text, str) else ""


def read_count(value: Any, *steps: str | int) -> int:
    count = dig(value, *steps)
    return max(count, 0) if isinstance(count, int) else 0
