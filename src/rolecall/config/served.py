"""The keys of the `engine` section of a config whose engine is a server that somebody else runs."""

from __future__ import annotations

from typing import Literal
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from rolecall.config.engine_section import EngineSection
from rolecall.core.json_types import JsonObject

OPENAI_URL = "https://api.openai.com/v1"


class ServedEngineConfig(EngineSection):
    """A server at an address; it needs `pip install 'rolecall[served]'`."""

    is_served = True

    url: str
    """Its address."""
    key_env: str | None = None
    """The environment variable that holds its key; by default no key is sent. The key itself
    stands in no config, log or run folder."""
    concurrency: int = Field(64, ge=1, le=100_000)
    """Requests under way at once; further ones wait, and their deadline begins after that."""
    timeout_s: float = Field(300.0, gt=0, le=1e6)
    """Most seconds for one answer: all tries and the pauses between them."""
    request_s: float | None = Field(None, gt=0, le=1e6)
    """Most seconds for one try; by default what is left of timeout_s."""
    pause_s: float = Field(1.0, gt=0, le=1e4)
    """Seconds before a failed request is made again; doubled for each later time, up to 30. A
    server that asks for a longer pause gets it."""

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("write an address that begins with http:// or https://")
        if parts.username or parts.password:
            raise ValueError("an address holds no key or password; name its variable by key_env")
        return url.rstrip("/")

    @property
    def separate_weights(self) -> bool:
        """Its weights are never the learner's own."""
        return True


class ProviderEngineConfig(ServedEngineConfig):
    """An LLM behind somebody's API: frozen agents, coaches, judges and simulated users."""

    takes_weights = False

    model: str
    """The provider's name of the model."""
    budget_tokens: int | None = Field(None, ge=1, le=10**15)
    """Most tokens, of prompts and answers, that the run may use here; then it ends. Answers under
    way are still paid for."""
    budget_usd: float | None = Field(None, gt=0, le=1e9)
    """The same in dollars; it needs `prices` of its policies."""

    @property
    def dtype(self) -> None:
        """Nobody asks it for log-probs that a learner must match."""
        return None

    @property
    def has_budget(self) -> bool:
        return bool(self.budget_usd or self.budget_tokens)

    def takes_text(self, base: str) -> bool:
        return True


class OpenAIEngineConfig(ProviderEngineConfig):
    """Any server with OpenAI's API, or OpenAI itself: `pip install 'rolecall[served]'`. What it
    says is never trained on."""

    label = "a server"

    name: Literal["openai"] = "openai"
    """Agents that nobody trains: judges, opponents, teachers; coaches and simulated users."""
    url: str = OPENAI_URL
    """Its address; by default that of OpenAI."""
    key_env: str | None = None
    """The environment variable that holds its key; by default OPENAI_API_KEY for OpenAI's own
    address, and no key for others. The key itself stands in no config, log or run folder."""
    token_ids: Literal["auto"] | bool = "auto"
    """Whether prompts are sent as tokens and tokens come back (`/completions` of vLLM or SGLang),
    or messages and text (`/chat/completions`); `auto`: tokens where the policy has a base."""
    max_tokens_key: Literal["max_completion_tokens", "max_tokens"] = "max_completion_tokens"
    """What the server calls the most tokens of an answer to messages; older ones say max_tokens."""
    extra: JsonObject = {}
    """Further keys of each request's body, e.g. {reasoning_effort: low}; null leaves out a key
    that we would send, e.g. {top_p: null, seed: null}."""

    def takes_text(self, base: str) -> bool:
        return not (base if self.token_ids == "auto" else self.token_ids)

    @model_validator(mode="after")
    def _find_key(self) -> OpenAIEngineConfig:
        """Set the variable of OpenAI's key.

        A server of one's own gets no key that is meant for OpenAI.
        """
        if self.key_env is None and self.url == OPENAI_URL:
            self.key_env = "OPENAI_API_KEY"
        return self


class AnthropicEngineConfig(ProviderEngineConfig):
    """Anthropic's messages API: `pip install 'rolecall[coach]'`. What it says is never trained
    on."""

    label = "Anthropic"

    name: Literal["anthropic"] = "anthropic"
    """As `openai`, with messages alone."""
    url: str = "https://api.anthropic.com"
    """Its address; by default that of Anthropic."""
    key_env: str | None = "ANTHROPIC_API_KEY"
    """The environment variable that holds its key."""


class GoogleEngineConfig(ProviderEngineConfig):
    """Gemini, with an API key or through Vertex AI: `pip install 'rolecall[coach]'`. What it says
    is never trained on."""

    label = "Google"

    name: Literal["google"] = "google"
    """As `openai`, with messages alone."""
    url: str = ""
    """Its address; by default that of Google."""
    vertex: bool = False
    """Ask through Vertex AI. Without `key_env` it uses the application default credentials, and the
    variables GOOGLE_CLOUD_PROJECT and GOOGLE_CLOUD_LOCATION (`global` if there is none)."""
    key_env: str | None = None
    """The environment variable that holds its key; by default GEMINI_API_KEY, and none for Vertex
    AI."""

    @model_validator(mode="after")
    def _find_key(self) -> GoogleEngineConfig:
        if self.key_env is None and not self.vertex:
            self.key_env = "GEMINI_API_KEY"
        return self


class SGLangEngineConfig(ServedEngineConfig):
    """A running SGLang server, which samples what is trained: `pip install 'rolecall[served]'`.
    Its interface was tried out with a stand-in only, not with a real server."""

    label = "SGLang"

    name: Literal["sglang"] = "sglang"
    """Each update publishes to it, by files."""
    url: str = "http://127.0.0.1:30000"
    """Its address."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """What it computes in, as it was started (`--dtype`); by default learner.dtype."""
    weights_folder: str | None = None
    """Folder that this machine and the server's have under one path, through which weights go; by
    default shared memory of this machine."""
    sleep: bool = False
    """Let the server free its cache and weights during updates; it must have been started with
    --enable-memory-saver and --enable-weights-cpu-backup."""
