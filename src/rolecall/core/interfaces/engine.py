"""Declares what an engine takes (prompts as tokens) and gives (tokens with their log-probs)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from pydantic import BaseModel, ConfigDict, Field

from rolecall.core.interfaces.weights import Probe, WeightSource
from rolecall.core.json_types import JsonObject
from rolecall.core.types import Floats, Ids, Message

if TYPE_CHECKING:
    from torch import Tensor


class Sampling(BaseModel):
    """Describes how one agent's tokens are sampled."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    temperature: float = Field(1.0, ge=0.0, le=100.0)
    """Logits are divided by it; 0 takes the most likely token (evaluation only)."""
    top_p: float = Field(1.0, gt=0.0, le=1.0)
    """Keep the most likely tokens that together reach this probability. Training needs 1."""
    top_k: int = Field(0, ge=0, le=1_000_000_000)
    """Keep this many most likely tokens; 0 keeps all. Training needs 0."""
    max_tokens: int = Field(512, ge=1, le=10_000_000)
    """Most tokens a turn may have; a turn that reaches it has finish `length`."""
    stop: tuple[str, ...] = ()
    """Texts that end a turn; they stay in its tokens."""
    stop_token_ids: tuple[int, ...] = ()
    """Token ids that end a turn, beside the model's own end token."""

    @property
    def is_filtered(self) -> bool:
        """Return whether tokens come from anything but the softmax at the temperature."""
        return self.temperature == 0.0 or self.top_p < 1.0 or self.top_k > 0


@dataclass(frozen=True, slots=True)
class Request:
    """One call of one agent."""

    id: str  # Turn.id
    policy: str
    prompt: Ids  # [P]
    sampling: Sampling
    seed: int  # each completion's draws derive from it and from nothing else
    order: tuple[str, int, tuple[int, ...]]  # (task, attempt, path): rows of a batch stand so
    n: int = 1  # completions
    episode: str = ""


@dataclass(slots=True)
class Completion:
    """Holds what was sampled."""

    tokens: Ids  # [T], the end token or stop tokens included
    logprobs: Floats  # [T] under the distribution sampled from; at temperature 0 under softmax
    versions: Ids  # [T] policy version that sampled each token
    finish: str  # stop | length
    usage: dict[str, float] | None = None  # as of an Answer


@dataclass(frozen=True, slots=True)
class Question:
    """One call of an agent whose server takes messages."""

    id: str  # Turn.id
    policy: str
    messages: list[Message]
    sampling: Sampling
    seed: int
    n: int = 1  # answers
    schema: JsonObject | None = None  # JSON schema of the answer, where the server knows them
    own_sampling: bool = False  # the server's own temperature and top_p, not those of `sampling`


@dataclass(slots=True)
class Answer:
    """An answer of a server that takes messages."""

    text: str  # reasoning stands before it in <think>...</think>
    finish: str  # stop | length
    refused: bool = False  # the model or a filter declined; `text` may say why
    usage: dict[str, float] | None = None
    """prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens and usd of the answer."""


class ContextFullError(ValueError):
    """A prompt leaves no room for an answer in the model's context, or in the cache."""


class Engine(Protocol):
    """Samples for many policies. Calls arrive one by one; the engine forms its own batches.

    A class that names this one as its base needs `generate`, `cancel` and `score` alone.
    """

    can: frozenset[str] = frozenset()
    """What it is able to do: `adapters`, `sleep`, `pause`, `score_at_temperature`, and `exact`: the
    same seed gives the same tokens, whatever is sampled beside them."""

    async def generate(self, request: Request) -> list[Completion]:
        """Sample completions of a prompt; raises ContextFullError if the prompt leaves no room."""
        ...

    async def cancel(self, request_id: str) -> None:
        """Forget a request and free its memory; unknown ids are ignored."""
        ...

    async def score(self, policy: str, prompt: Ids, tokens: Ids, *, temperature: float) -> Floats:
        """Return the log-prob of each of `tokens` [T] after `prompt` [P], as `generate` would
        report it.
        """
        ...

    async def publish(self, policy: str, version: int, source: WeightSource) -> None:
        """Sample with the weights of `source` from now on, in whichever form the engine takes.

        By default `load` is given tensors of this process.
        """
        self.load(policy, version, await source.tensors())

    def load(self, policy: str, version: int, weights: dict[str, Tensor] | None) -> None:
        """Sample with these weights from now on; None: with the learner's own tensors."""
        raise TypeError(f"{type(self).__name__} takes no tensors of the trainer's process")

    async def prove(self, probe: Probe) -> None:
        """Compare the engine's log-probs with the learner's; raises PublishError if they differ."""
        first, others = probe.tokens[:1], probe.tokens[1:]
        probe.check(await self.score(probe.policy, first, others, temperature=1.0))

    async def trust(self, policy: str) -> None:
        """Sample weights that no learner has, which nobody can prove."""
        return

    async def pause(self, *, keep: bool) -> None:
        """Sample nothing until `resume`. `keep`: requests under way go on then; else they end."""
        return

    async def resume(self) -> None:
        return None

    async def reset_prefix_cache(self) -> None:
        """Let no request find what earlier ones have read, as if the engine had just started."""
        return

    async def sleep(self, *, weights: bool) -> None:
        """Drop the caches, and the `weights` if asked, while a learner needs the memory."""
        return

    async def wake(self, part: Literal["weights", "cache"]) -> None:
        """Take back the memory of one part; weights before a publication, the cache after it."""
        return

    async def check(self) -> None:
        """Check the engine; raises InfrastructureError if it cannot be reached or has failed."""
        return

    async def close(self) -> None:
        """End what the engine has started."""
        return


@runtime_checkable
class TextEngine(Engine, Protocol):
    """An engine whose model takes messages and says text; such turns have no tokens."""

    async def answer(self, question: Question) -> list[Answer]:
        """Answer messages; raises ContextFullError if the messages leave no room."""
        ...
