"""Samples with a running SGLang server, which takes the weights of each update from files.

Its HTTP interface is that of SGLang's own documentation and sources (0.5.3 and later). The tests
speak to a stand-in that has it; no real server has run.

- `/generate` reports log-probs under the temperature and before top-p and top-k, unless the server
  has SGLANG_RETURN_ORIGINAL_LOGPROB set, which must not be.
- Requests keep their seeds only with --enable-deterministic-inference.
- `/update_weights_from_disk` waits for requests under way, and later ones wait for it: no turn is
  sampled by two versions.
- An adapter is loaded under a new name each time and the one before it is unloaded, which waits for
  the requests that use it. The server needs --enable-lora, --max-lora-rank and
  --lora-target-modules, and room for one adapter more than there are policies.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal

import numpy as np

from rolecall.config.schema import Adapter
from rolecall.config.served import SGLangEngineConfig
from rolecall.core.errors import InfrastructureError
from rolecall.core.interfaces.engine import Completion, ContextFullError, Request, Sampling
from rolecall.core.interfaces.publisher import FileEngine
from rolecall.core.json_types import JsonObject, JsonValue
from rolecall.core.types import Floats, Ids
from rolecall.engines.local.sequence import Sequence, make_sequences
from rolecall.engines.served.connection import CHECK_S, Connection, MalformedError, dig

NEVER = -10_000.0  # added to the logit of an id that is not sampled
LOAD_S = 1800.0  # until the server must have read new weights


class SGLangEngine(FileEngine):
    """Adapters of one base beside the base itself, or one policy with all its weights."""

    def __init__(
        self,
        options: SGLangEngineConfig,
        policies: Mapping[str, Adapter | None],
        *,
        end_ids: list[int],
        key: str | None,
        padded_ids: range = range(0),
    ) -> None:
        """`end_ids` end every turn; `padded_ids` of the head, which the tokenizer lacks, are not
        sampled.
        """
        self.can = frozenset({"adapters", "pause"} | ({"sleep"} if options.sleep else set()))
        self.options, self.policies, self.end_ids = options, dict(policies), end_ids
        self._connection = Connection(options, key=key)
        self._bias = {str(number): NEVER for number in padded_ids}
        self._max_length = 0
        self._adapters: dict[str, str] = {}  # by policy, the server's name of what is loaded
        self._versions = dict.fromkeys(policies, 0)
        self._labels: dict[str, int] = {}  # of all weights, as the server knows versions
        self._asleep: set[str] = set()
        self._mark = secrets.token_hex(4)  # so that no other run's adapters have our names
        self._loads = 0

    async def generate(self, request: Request) -> list[Completion]:
        self._known(request.policy)
        limits = {"the server's context": await self._length()}
        rows = make_sequences(request, limits=limits, ends=self.end_ids)
        return await self._connection.gather_calls(request.id, [self._sampled(row) for row in rows])

    async def cancel(self, request_id: str) -> None:
        """Cancel a request, so that the server ends what nobody waits for."""
        self._connection.cancel(request_id)

    async def score(self, policy: str, prompt: Ids, tokens: Ids, *, temperature: float) -> Floats:
        """Score at temperature 1 only: ValueError at another one."""
        if temperature != 1.0:
            raise ValueError(f"SGLang scores at temperature 1 only, not at {temperature}")
        self._known(policy)
        length, room = len(prompt) + len(tokens), await self._length() - 1
        if length > room:
            raise ContextFullError(
                f"{length} tokens are to be scored; the server's context of policy {policy!r} has "
                f"room for {room}"
            )
        body = {
            "input_ids": [*prompt.tolist(), *tokens.tolist()],
            "sampling_params": {"max_new_tokens": 0, "temperature": 1.0},
            "return_logprob": True,
            "logprob_start_len": len(prompt)
            - 1,  # of which there is no log-prob: the first is null
            **self._adapter(policy),
        }
        return await self._connection.ask(
            "POST", "/generate", body=body, read=lambda found: _scored(found, tokens)
        )

    async def load_files(self, policy: str, version: int, folder: Path) -> None:
        """Load files as `FileEngine` says; requests under way finish with the weights before.

        Raises InfrastructureError, with what the server says, where it cannot load the files.
        """
        adapter = self._known(policy)
        self._loads += 1
        name = f"{policy}-{self._mark}-{self._loads}"
        with _shown(folder, self.options.weights_folder, name) as path:
            if adapter is None:
                self._labels[name] = version
                body: JsonObject = {
                    "model_path": str(path), "weight_version": name, "flush_cache": True
                }  # fmt: skip
                await self._load("/update_weights_from_disk", body)
            else:
                await self._load("/load_lora_adapter", {"lora_name": name, "lora_path": str(path)})
        self._versions[policy] = version
        if adapter is not None:
            before = self._adapters.get(policy)
            self._adapters[policy] = name
            if before is not None:
                await self._unload(before)

    async def pause(self, *, keep: bool) -> None:
        """Pause; without `keep`, callers that wait for an answer get an InfrastructureError."""
        mode = "retract" if keep else "abort"
        await self._connection.tell("POST", "/pause_generation", body={"mode": mode})

    async def resume(self) -> None:
        await self._connection.tell("POST", "/continue_generation", body={})

    async def reset_prefix_cache(self) -> None:
        """Reset the prefix cache; raises InfrastructureError while the server still samples."""
        await self._connection.tell("POST", "/flush_cache", body={})

    async def sleep(self, *, weights: bool) -> None:
        if not self.options.sleep:
            return
        tags = {"kv_cache", "weights"} if weights else {"kv_cache"}
        if tags := tags - self._asleep:
            await self._connection.tell(
                "POST", "/release_memory_occupation", body={"tags": sorted(tags)}
            )
            self._asleep |= tags

    async def wake(self, part: Literal["weights", "cache"]) -> None:
        tag = "kv_cache" if part == "cache" else part
        if tag in self._asleep:
            await self._connection.tell("POST", "/resume_memory_occupation", body={"tags": [tag]})
            self._asleep.discard(tag)

    async def check(self) -> None:
        deadline_s = min(CHECK_S, self.options.timeout_s)
        await self._connection.tell("GET", "/health", deadline_s=deadline_s)
        await self._length()
        if folder := self.options.weights_folder:
            await asyncio.to_thread(_try_out, Path(folder))

    async def close(self) -> None:
        """Take our adapters from the server, if it is still there."""
        with suppress(InfrastructureError):
            for name in self._adapters.values():
                await self._unload(name, deadline_s=CHECK_S)
        self._adapters.clear()
        await self._connection.close()

    async def _sampled(self, row: Sequence) -> Completion:
        request, policy = row.request, row.request.policy
        now = self._versions[policy]  # an adapter's name stands for its version
        body = {
            "input_ids": request.prompt.tolist(),
            "sampling_params": _parameters(request.sampling, row)
            | ({"logit_bias": self._bias} if self._bias else {}),
            "return_logprob": True,
            **self._adapter(policy),
        }

        def read(found: JsonValue) -> Completion:
            tokens, logprobs = _columns(dig(found, "meta_info", "output_token_logprobs"))
            label = dig(found, "meta_info", "weight_version")
            whole = self.policies[policy] is None and isinstance(label, str)
            version = self._labels.get(label, now) if whole else now
            versions = np.full(len(tokens), version, dtype=np.int32)
            finish = _finish(found)
            if len(tokens) and int(tokens[-1]) in row.ends:
                finish = "stop"  # SGLang says `length` of an end exactly at the limit
            return Completion(tokens, logprobs, versions, finish)

        return await self._connection.ask("POST", "/generate", body=body, read=read)

    async def _load(self, path: str, body: JsonObject) -> None:
        def read(found: JsonValue) -> None:
            if dig(found, "success") is not True:
                message = dig(found, "message") or dig(found, "error_message") or found
                raise InfrastructureError(
                    f"the server at {self.options.url} loads nothing: {message}"
                )

        await self._connection.ask("POST", path, body=body, read=read, deadline_s=LOAD_S)

    async def _unload(self, name: str, *, deadline_s: float = LOAD_S) -> None:
        await self._connection.tell(
            "POST", "/unload_lora_adapter", body={"lora_name": name}, deadline_s=deadline_s
        )

    async def _length(self) -> int:
        """Most tokens of a prompt and its answer together, asked for once."""
        if not self._max_length:

            def read(found: JsonValue) -> int:
                length = dig(found, "data", 0, "max_model_len")
                if not isinstance(length, int):
                    raise MalformedError("no data[0].max_model_len in the list of models")
                return length

            self._max_length = await self._connection.ask("GET", "/v1/models", read=read)
        return self._max_length

    def _adapter(self, policy: str) -> dict[str, str]:
        """Return the key of a request that names its policy's adapter; none for the base."""
        return {"lora_path": self._adapters[policy]} if policy in self._adapters else {}

    def _known(self, policy: str) -> Adapter | None:
        """Return a policy's adapter; raises ValueError if the engine does not serve the policy."""
        if policy not in self.policies:
            names = ", ".join(sorted(self.policies))
            raise ValueError(f"this SGLang engine serves {names}, not {policy!r}")
        return self.policies[policy]


def _parameters(sampling: Sampling, row: Sequence) -> JsonObject:
    """Return every parameter that changes the distribution, so that no default of the server
    applies.
    """
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k or -1,
        "min_p": 0.0,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "repetition_penalty": 1.0,
        "max_new_tokens": row.limit,
        "stop": list(sampling.stop),
        "stop_token_ids": sorted(row.ends),
        "sampling_seed": row.seed % 2**31,
        "skip_special_tokens": False,
        "no_stop_trim": True,
    }


def _columns(found: list[tuple[float, int, str]]) -> tuple[Ids, Floats]:
    """Return tokens [T] and log-probs [T] of [[log-prob, token, text], ...].

    Raises MalformedError.
    """
    try:
        tokens = np.array([entry[1] for entry in found], dtype=np.int32)
        logprobs = np.array([entry[0] for entry in found], dtype=np.float32)
    except (TypeError, ValueError, IndexError, OverflowError) as error:
        raise MalformedError(f"no log-probs of tokens in meta_info: {error}") from error
    if not np.isfinite(logprobs).all():
        raise MalformedError("a log-prob in meta_info is no number")
    return tokens, logprobs


def _scored(found: JsonValue, tokens: Ids) -> Floats:
    """Return the log-probs of the last tokens of an input; raises MalformedError."""
    entries = dig(found, "meta_info", "input_token_logprobs")
    if not isinstance(entries, list) or len(entries) < len(tokens):
        raise MalformedError("meta_info has no input_token_logprobs of all tokens")
    scored, logprobs = _columns(entries[-len(tokens) :])
    if not np.array_equal(scored, tokens):
        raise MalformedError("input_token_logprobs are of other tokens than were sent")
    return logprobs


def _finish(found: JsonValue) -> str:
    """Return why a request finished; raises InfrastructureError if the server aborted it."""
    reason = dig(found, "meta_info", "finish_reason", "type")
    if reason == "abort":
        message = dig(found, "meta_info", "finish_reason", "message") or "it was paused or aborted"
        raise InfrastructureError(f"SGLang aborted the request: {message}")
    if reason not in ("stop", "length"):
        raise MalformedError(f"meta_info.finish_reason is {reason!r}")
    return str(reason)


@contextmanager
def _shown(folder: Path, place: str | None, name: str) -> Iterator[Path]:
    """Yield the folder as the server sees it: itself, or a temporary copy in a shared folder."""
    if place is None:
        yield folder.resolve()
        return
    copy = Path(place).resolve() / name
    try:
        yield Path(shutil.copytree(folder, copy))
    finally:
        shutil.rmtree(copy, ignore_errors=True)


def _try_out(place: Path) -> None:
    """Check that a folder can be written to; raises ValueError otherwise."""
    mark = place / f".rolecall-{secrets.token_hex(4)}"
    try:
        place.mkdir(parents=True, exist_ok=True)
        mark.touch()
        mark.unlink()
    except OSError as error:
        raise ValueError(f"weights_folder: nothing can be written to {place}: {error}") from error
