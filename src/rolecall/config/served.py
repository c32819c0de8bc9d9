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
    """Address of the server."""
    key_env: str | None = None
    """Environment variable that holds the API key; by default no key is sent. The key is written to
    no config, log or run folder."""
    concurrency: int = Field(64, ge=1, le=100_000)
    """Most requests at once. Further requests wait; their time limit begins when they are sent."""
    timeout_s: float = Field(300.0, gt=0, le=1e6)
    """Time limit of an answer in seconds, with all tries and the pauses between them."""
    request_s: float | None = Field(None, gt=0, le=1e6)
    """Time limit of one try in seconds; by default what remains of timeout_s."""
    pause_s: float = Field(1.0, gt=0, le=1e4)
    """Seconds before a failed request is repeated. The pause doubles with each repeat, up to 30. A
    longer pause that the server asks for is kept."""

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        if url == cls.model_fields["url"].default:  # of Google's engine, whose SDK knows its own
            return url
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("write an address that begins with http:// or https://")
        if parts.username or parts.password:
            raise ValueError("an address holds no key or password; name its variable by key_env")
        return url.rstrip("/")

    @property
    def key_names(self) -> tuple[str, ...]:
        """The variables that may hold the key, of which the first that is set is used."""
        return (self.key_env,) if self.key_env else ()

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
    """Most tokens of prompts and answers that the run may use here; then the run ends. Requests
    that are under way are still paid for."""
    budget_usd: float | None = Field(None, gt=0, le=1e9)
    """Most US dollars that the run may spend here; then the run ends. Needs `prices` of the
    policies that use this engine."""

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
    """OpenAI's API, for frozen agents, coaches, judges and simulated users."""
    url: str = OPENAI_URL
    """Address of the server; by default that of OpenAI."""
    key_env: str | None = None
    """Environment variable that holds the API key; by default OPENAI_API_KEY for OpenAI's own
    address, and no key for others. The key is written to no config, log or run folder."""
    token_ids: Literal["auto"] | bool = "auto"
    """Send tokens and receive tokens (`/completions` of vLLM or SGLang) instead of messages and
    text (`/chat/completions`). `auto` sends tokens if the policy has a base."""
    max_tokens_key: Literal["max_completion_tokens", "max_tokens"] = "max_completion_tokens"
    """The server's name for the most tokens of an answer; older servers use max_tokens."""
    extra: JsonObject = {}
    """More keys for the body of each request, e.g. {reasoning_effort: low}. A null value removes a
    key that is otherwise sent, e.g. {top_p: null, seed: null}."""

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
    """Anthropic's API, for frozen agents, coaches, judges and simulated users."""
    url: str = "https://api.anthropic.com"
    """Address of the server; by default that of Anthropic."""
    key_env: str | None = "ANTHROPIC_API_KEY"
    """Environment variable that holds the API key."""


class GoogleEngineConfig(ProviderEngineConfig):
    """Gemini, with an API key or through Vertex AI: `pip install 'rolecall[coach]'`. What it says
    is never trained on."""

    label = "Google"

    name: Literal["google"] = "google"
    """Google's API, for frozen agents, coaches, judges and simulated users."""
    url: str = ""
    """Address of the server; by default that of Google."""
    vertex: bool = False
    """Use Vertex AI. Without `key_env` it uses the application default credentials and the
    variables GOOGLE_CLOUD_PROJECT and GOOGLE_CLOUD_LOCATION (by default `global`)."""
    key_env: str | None = None
    """Environment variable that holds the API key; by default GEMINI_API_KEY, or
    GOOGLE_API_KEY where that is not set, and none for Vertex AI."""
    thinking_budget: int | None = Field(None, ge=-1, le=1_000_000)
    """Most tokens that the model thinks before it answers: 0 for none, -1 for as many as it
    likes; by default the model's own."""

    @property
    def key_names(self) -> tuple[str, ...]:
        if self.key_env is None and not self.vertex:
            return ("GEMINI_API_KEY", "GOOGLE_API_KEY")
        return super().key_names


class SGLangEngineConfig(ServedEngineConfig):
    """A running SGLang server, which samples what is trained: `pip install 'rolecall[served]'`.
    Its interface was tried out with a stand-in only, not with a real server."""

    label = "SGLang"

    name: Literal["sglang"] = "sglang"
    """Each update publishes to it, by files."""
    url: str = "http://127.0.0.1:30000"
    """Its address."""
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """What it computes in, as it was started (`--dtype`); by default learner.dtype."""
    weights_folder: str | None = None
    """Folder that this machine and the server's have under one path, through which weights go; by
    default shared memory of this machine."""
    sleep: bool = False
    """Let the server free its cache and weights during updates; it must have been started with
    --enable-memory-saver and --enable-weights-cpu-backup."""
