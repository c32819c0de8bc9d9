"""Does with vLLM's AsyncLLM what the driver asks for: sampling, scoring, and changes of weights.

vLLM labels the tokens it samples with one name for all weights of an engine. Here it is the number
of an entry in a list that says each policy's version.
"""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import numpy as np
from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.inputs import TokensPrompt
from vllm.lora.request import LoRARequest
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.executor import Executor

from rolecall.core.interfaces.engine import Completion, Sampling
from rolecall.core.json_types import JsonObject
from rolecall.core.types import Floats, Ids
from rolecall.engines.vllm.engine_args import Launch


def start(launch: Launch) -> AsyncLLM:
    """Start vLLM with the model loaded; its engine core is a process below this one."""
    arguments = dict(launch.arguments)
    config = AsyncEngineArgs(**arguments).create_engine_config()
    if launch.on_cpu and config.parallel_config.world_size == 1:
        # vLLM would start one more process, and each anew, so that libraries can be preloaded
        # that speed its threads up: three imports of 6 s instead of one.
        config.parallel_config.distributed_executor_backend = "uni"
        os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = "fork"
    return AsyncLLM(
        config, Executor.get_class(config), log_stats=False, log_requests=False
    )  # fmt: skip


def parameters(
    sampling: Sampling, *, seed: int, limit: int, ends: tuple[int, ...]
) -> SamplingParams:
    """Return vLLM's sampling parameters for one completion of at most `limit` tokens."""
    return SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        seed=seed,
        max_tokens=limit,
        stop=list(sampling.stop),
        stop_token_ids=sorted({*ends, *sampling.stop_token_ids}),
        ignore_eos=True,  # the end tokens are among those above
        logprobs=0,  # of the sampled token alone
        flat_logprobs=True,
        detokenize=bool(sampling.stop),  # texts are decoded only where one may end a turn
        skip_special_tokens=False,  # a stop may be one
        spaces_between_special_tokens=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


class Service:
    """Each method is a call of the driver's, by its name."""

    def __init__(self, llm: AsyncLLM, launch: Launch) -> None:
        self.llm, self.launch = llm, launch
        self._published: list[dict[str, int]] = [{}]  # by label; 0 where a policy has no entry
        names = enumerate(sorted(launch.adapters), 1)
        self._adapters = {name: LoRARequest(name, number, "none") for number, name in names}
        self._changing = asyncio.Lock()  # of weights and of what is paused
        self._held: set[str] = set()  # why nothing is sampled: `pause`, `sleep`
        self._names = itertools.count()  # of requests
        self._broken = ""  # why its weights are unknown

    async def begin(self) -> int:
        """Begin to serve and return the most tokens of a row.

        Raises ValueError if layers that an adapter names cannot have adapters.
        """
        await self._label()
        if self.launch.adapters:
            await self.llm.collective_rpc("start_adapters", args=(list(self._adapters),))
            modules, *_ = await self.llm.collective_rpc("adapted_modules")
            for policy, adapter in self.launch.adapters.items():
                targets = [] if isinstance(adapter.targets, str) else adapter.targets
                for name in targets:
                    if name.rsplit(".", 1)[-1] not in modules:
                        raise ValueError(
                            f"policies.{policy}.adapter.targets: vLLM has no adapters on {name!r}; "
                            f"it has them on {', '.join(modules)}"
                        )
        return int(self.llm.model_config.max_model_len)

    async def generate(
        self, *, policy: str, prompt: Ids, sampling: Sampling, seed: int, limit: int
    ) -> Completion:
        """Return one completion of a prompt that leaves room for `limit` tokens."""
        params = parameters(sampling, seed=seed, limit=limit, ends=self.launch.end_ids)
        result = await self._run(policy, prompt, params)
        output: CompletionOutput = result.outputs[0]
        if output.finish_reason not in ("stop", "length"):
            raise RuntimeError(f"vLLM aborted the request ({output.finish_reason})")
        return Completion(
            tokens=np.array(output.token_ids, dtype=np.int32),
            logprobs=np.array(output.logprobs.logprobs, dtype=np.float32),
            versions=self._versions(policy, output),
            finish=output.finish_reason,
        )

    async def score(self, *, policy: str, prompt: Ids, tokens: Ids) -> Floats:
        """Return log-probs [T] at temperature 1; vLLM reads no cached prefix where it scores a
        prompt.
        """
        sampling = SamplingParams(
            temperature=0.0, max_tokens=1, prompt_logprobs=0, flat_logprobs=True, detokenize=False,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )  # fmt: skip
        result = await self._run(policy, np.concatenate([prompt, tokens]), sampling)
        logprobs = result.prompt_logprobs.logprobs  # of all tokens but the first
        return np.array(logprobs[len(prompt) - 1 :], dtype=np.float32)

    async def _run(self, policy: str, prompt: Ids, asked: SamplingParams) -> RequestOutput:
        if self._broken:
            raise RuntimeError(self._broken)
        last: RequestOutput | None = None
        async for output in self.llm.generate(
            TokensPrompt(prompt_token_ids=prompt.tolist()), asked, f"{next(self._names)}",
            lora_request=self._adapters.get(policy),
        ):  # fmt: skip
            last = output
        return last

    def _versions(self, policy: str, said: CompletionOutput) -> Ids:
        """Return the version of each token [T] from vLLM's spans of labels."""
        versions = np.zeros(len(said.token_ids), dtype=np.int32)
        for span in said.weight_versions or []:
            versions[span.start : span.end] = self._published[int(span.version)].get(policy, 0)
        return versions

    async def _label(self) -> None:
        await self.llm.update_weight_version(str(len(self._published) - 1))

    async def load(self, *, policy: str, version: int, folder: str, files: list[str]) -> None:
        """Sample with the weights in a folder, whose safetensors `files` are all of them."""
        async with self._loading_weights(policy, version):
            if policy in self.launch.adapters:
                await self._take_adapter(policy, folder)
            else:
                await self._take_all("take_files", files, of=", ".join(files))

    async def receive(self, *, policy: str, version: int, at: JsonObject, number: int) -> None:
        """Sample with all the weights that a learner sends."""
        async with self._loading_weights(policy, version):
            await self._take_all("take_sent", at, number, of="what the learner sends")

    @asynccontextmanager
    async def _loading_weights(self, policy: str, version: int) -> AsyncIterator[None]:
        """Stop sampling inside; what is sampled afterwards has this version."""
        async with self._changing:
            await self._stop_sampling()
            try:
                yield
                await self._note(policy, version)
            finally:
                await self._sample_again()

    async def _take_adapter(self, policy: str, folder: str) -> None:
        """Load an adapter.

        Raises ValueError if it does not fit: vLLM keeps the adapter it has.
        """
        number = self._adapters[policy].lora_int_id
        answers = await self.llm.collective_rpc("take_adapter", args=(policy, number, folder))
        if wrong := next(filter(None, answers), ""):
            raise ValueError(f"vLLM cannot serve the adapter in {folder}: {wrong}")
        # Without `load_inplace`: with it vLLM would read the files again for every batch.
        self._adapters[policy] = LoRARequest(policy, number, folder)

    async def _take_all(self, method: str, *arguments: Any, of: str) -> None:
        """Load all weights; raises ValueError if they do not fit or do not arrive."""
        self._broken = f"vLLM's weights are unknown since it could not load {of}"
        answers = await self.llm.collective_rpc(method, args=arguments)
        if wrong := next(filter(None, answers), ""):
            raise ValueError(f"vLLM cannot load {of}: {wrong}")
        self._broken = ""

    async def _note(self, policy: str, version: int) -> None:
        self._published.append({**self._published[-1], policy: version})
        await self._label()

    async def _stop_sampling(self) -> None:
        """Rows under way stay, and read all their tokens again later: no old key or value is left
        of any policy.
        """
        await self.llm.pause_generation(mode="keep", clear_cache=True)

    async def _sample_again(self) -> None:
        if not self._held:
            await self.llm.resume_generation()

    async def pause(self, *, keep: bool) -> None:
        async with self._changing:
            self._held.add("pause")
            await self.llm.pause_generation(mode="keep" if keep else "abort", clear_cache=False)

    async def resume(self) -> None:
        async with self._changing:
            self._held.discard("pause")
            await self._sample_again()

    async def reset_prefix_cache(self) -> None:
        await self.llm.reset_prefix_cache(reset_running_requests=True)

    async def sleep(self, *, weights: bool) -> None:
        """Free the cache, and move the weights to the computer's memory if asked for."""
        async with self._changing:
            self._held.add("sleep")
            if weights:
                await self.llm.sleep(level=1, mode="keep")
            else:
                await self._stop_sampling()
                await self.llm.release_kv_cache_memory()

    async def wake(self, *, part: Literal["weights", "cache"]) -> None:
        """Wake a part; vLLM samples again once both parts are there, unless it is paused."""
        async with self._changing:
            awake = await self.llm.wake_up(["weights" if part == "weights" else "kv_cache"])
            if not awake:
                return
            self._held.discard("sleep")
            if self._held:
                await self.llm.pause_generation(mode="keep", clear_cache=False)

    async def check(self) -> int:
        """Return how many requests are under way."""
        await self.llm.check_health()
        return int(self.llm.get_num_unfinished_requests())
