"""Samples with vLLM, which runs in a process of its own and has weights of its own."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

from rolecall.config.schema import Adapter
from rolecall.config.vllm import VllmEngineConfig
from rolecall.core.errors import InfrastructureError
from rolecall.core.interfaces.engine import Completion, ContextFullError, Request, Sampling
from rolecall.core.interfaces.learner import Rendezvous
from rolecall.core.interfaces.publisher import DirectEngine
from rolecall.core.types import Floats, Ids
from rolecall.engines.local.sequence import make_sequences
from rolecall.engines.vllm import installed
from rolecall.engines.vllm.engine_args import plan_launch
from rolecall.engines.vllm.process import Call, VllmProcess
from rolecall.models.base_location import locate
from rolecall.runtime import call_tree
from rolecall.runtime.held_folders import HeldFolder, sweep

CHECK_S = 60.0  # until an answer to `check` must have come
COLDEST, HOTTEST = 0.01, 2.0  # vLLM takes lower temperatures for this one, and refuses higher ones


class VllmEngine(DirectEngine):
    """Adapters of one base, or one policy with all its weights; an adapter is the base at first.

    It starts at the first call, or with `start`.
    """

    def __init__(
        self,
        base: str,
        policies: Mapping[str, Adapter | None],
        *,
        end_ids: list[int],
        options: VllmEngineConfig,
        device: str = "auto",
        takes_turns: bool = False,
        threads: int = 1,
        vocabulary: int | None = None,
    ) -> None:
        """`end_ids` end every turn; `device`: its first GPU; `takes_turns`: free it in `sleep`;
        `threads`: on a CPU, where OMP_NUM_THREADS does not say how many; `vocabulary`: the
        tokenizer's number of ids, so that those of a padded head are not sampled.

        Raises ConfigError where vLLM is missing or cannot serve.
        """
        on_cpu = installed.on_cpu()
        self.can = frozenset({"adapters", "pause"} | ({"sleep"} if takes_turns else set()))
        self.policies, self.options = dict(policies), options
        self._launch = plan_launch(
            locate(base), policies, end_ids=end_ids, options=options, on_cpu=on_cpu, device=device,
            takes_turns=takes_turns, threads=threads, vocabulary=vocabulary,
        )  # fmt: skip
        self._process: VllmProcess | None = None
        self._folder: HeldFolder | None = None
        self._closed = False
        self._max_length = 0
        self._calls: dict[str, list[Call]] = {}  # request id -> its completions

    async def start(self) -> None:
        """Wait until the model is loaded.

        Raises InfrastructureError with the log's last lines where vLLM ends or takes too long, and
        ValueError where it has no adapters on a layer that a policy names.
        """
        if self._closed:
            raise InfrastructureError("the vLLM engine was closed")
        if self._process is None:
            disk = Path(tempfile.gettempdir())
            sweep(disk)
            self._folder = HeldFolder(disk, "vllm-")
            scratch = Path(self._folder.name)
            self._process = VllmProcess(
                self._launch,
                scratch=scratch,
                log=Path(self.options.log or scratch / "vllm.log"),
                start_timeout_s=self.options.start_timeout_s,
            )
        if not self._max_length:
            self._max_length = await asyncio.shield(asyncio.wrap_future(self._process.ready))

    async def generate(self, request: Request) -> list[Completion]:
        _check(request.sampling)
        self._known(request.policy)
        with call_tree.waiting():
            await self.start()
            limits = {"the model's context": self._max_length}
            rows = make_sequences(request, limits=limits, ends=list(self._launch.end_ids))
            calls = [
                self._call(
                    "generate", policy=request.policy, prompt=request.prompt,
                    sampling=request.sampling, seed=row.seed, limit=row.limit,
                )
                for row in rows
            ]  # fmt: skip
            self._calls[request.id] = calls
            try:
                return [await asyncio.wrap_future(call.future) for call in calls]
            finally:
                self._drop(calls)
                if self._calls.get(request.id) is calls:
                    del self._calls[request.id]

    async def cancel(self, request_id: str) -> None:
        """Cancel a request, and its `generate` if it still waits."""
        self._drop(self._calls.pop(request_id, []))

    def _drop(self, calls: list[Call]) -> None:
        for call in calls:
            assert self._process is not None
            self._process.drop(call)

    async def score(self, policy: str, prompt: Ids, tokens: Ids, *, temperature: float) -> Floats:
        """Score at temperature 1 only: ValueError at another one."""
        if temperature != 1.0:
            raise ValueError(f"vLLM scores at temperature 1 only, not at {temperature}")
        self._known(policy)
        await self.start()
        if len(prompt) + len(tokens) >= self._max_length:
            raise ContextFullError(
                f"{len(prompt) + len(tokens)} tokens are to be scored; the model's context of "
                f"policy {policy!r} has room for {self._max_length - 1}"
            )
        scored: Floats = await self._ask("score", policy=policy, prompt=prompt, tokens=tokens)
        return scored

    async def load_files(self, policy: str, version: int, folder: Path) -> None:
        """Load files as `FileEngine` says; rows under way go on, with keys and values made anew.

        Raises ValueError where the files do not fit: an adapter is then what it was
        before, and weights that are all a policy's are unknown, so nothing is sampled until others
        are loaded.
        """
        adapter = self._known(policy)
        files = _adapter_files(folder, self._rank) if adapter else _weight_files(folder)
        await self.start()
        await self._ask(
            "load", policy=policy, version=version, folder=str(folder.resolve()),
            files=[str(file.resolve()) for file in files],
        )  # fmt: skip

    async def receive(self, policy: str, version: int, at: Rendezvous, number: int) -> None:
        """Receive weights as `DirectEngine` says; rows under way go on, as with `load_files`.

        Raises ValueError where not all weights come, and for an adapter.
        """
        if self._known(policy) is not None:
            raise ValueError(f"{policy!r} is an adapter, which vLLM reads from files")
        await self._ask("receive", policy=policy, version=version, at=asdict(at), number=number)

    def _known(self, policy: str) -> Adapter | None:
        """Return a policy's adapter; raises ValueError if the engine does not serve the policy."""
        if policy not in self.policies:
            names = ", ".join(sorted(self.policies))
            raise ValueError(f"this vLLM engine serves {names}, not {policy!r}")
        return self.policies[policy]

    @property
    def _rank(self) -> int:
        rank: int = self._launch.arguments["max_lora_rank"]
        return rank

    async def pause(self, *, keep: bool) -> None:
        """Pause; without `keep`, callers that wait for an answer get an InfrastructureError."""
        await self._ask("pause", keep=keep)

    async def resume(self) -> None:
        await self._ask("resume")

    async def reset_prefix_cache(self) -> None:
        await self._ask("reset_prefix_cache")

    async def sleep(self, *, weights: bool) -> None:
        """Weights are kept in the computer's memory."""
        if "sleep" in self.can:
            await self._ask("sleep", weights=weights)

    async def wake(self, part: Literal["weights", "cache"]) -> None:
        if "sleep" in self.can:
            await self._ask("wake", part=part)

    async def check(self) -> None:
        await self.start()
        try:
            async with asyncio.timeout(CHECK_S):
                await self._ask("check")
        except TimeoutError:
            raise InfrastructureError(
                f"vLLM's process has not answered within {CHECK_S:g} s"
            ) from None

    async def close(self) -> None:
        self._closed = True
        if self._process is not None:
            await asyncio.to_thread(self._process.close)
        if self._folder is not None:
            self._folder.cleanup()

    def _call(self, method: str, **arguments: Any) -> Call:
        assert self._process is not None, "start comes first"
        return self._process.call(method, **arguments)

    async def _ask(self, method: str, **arguments: Any) -> Any:
        """Once vLLM has started. It is done even if whoever waits for it is cancelled."""
        await self.start()
        return await asyncio.wrap_future(self._call(method, **arguments).future)


def _check(sampling: Sampling) -> None:
    if sampling.temperature and not COLDEST <= sampling.temperature <= HOTTEST:
        raise ValueError(
            f"temperature: vLLM samples at 0, or from {COLDEST} to {HOTTEST:g}, not at "
            f"{sampling.temperature:g}"
        )


def _adapter_files(folder: Path, most: int) -> list[Path]:
    """Return an adapter's files; raises ValueError if there is none of at most that rank."""
    weights, config = folder / "adapter_model.safetensors", folder / "adapter_config.json"
    if not weights.is_file() or not config.is_file():
        raise ValueError(f"{folder} has no adapter_model.safetensors and adapter_config.json")
    rank = json.loads(config.read_text())["r"]
    if rank > most:
        raise ValueError(f"the adapter in {folder} has rank {rank}; vLLM was started for {most}")
    return [weights]


def _weight_files(folder: Path) -> list[Path]:
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ValueError(f"{folder} has no safetensors files")
    return files
