"""Answers what a run asks of vLLM."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rolecall.config.row_lengths import longest_sampled
from rolecall.config.schema import Config
from rolecall.config.vllm import VllmEngineConfig
from rolecall.engines.backend import EngineBackend, owner_name

if TYPE_CHECKING:
    from rolecall.core.interfaces.publisher import FileEngine
    from rolecall.engines.inputs import EngineInputs
    from rolecall.engines.vllm.engine import VllmEngine
    from rolecall.models.memory_needs import Need, Phase
    from rolecall.models.sizes import Size

CACHE_GB = 2.0  # what it needs at least; on a GPU it takes what `engine.memory` leaves


class VllmBackend(EngineBackend):
    """vLLM in a process of its own: adapters of one base, or one policy with all its weights."""

    section: VllmEngineConfig

    @property
    def hosted_abilities(self) -> frozenset[str]:
        return frozenset({"adapters", "pause"})

    @classmethod
    def sharing_key(cls, config: Config, policy: str) -> tuple[str, ...]:
        section = config.policies[policy]
        return section.base, "" if section.adapter else policy

    def memory(self, policy: str, size: Size | None, *, auto: str) -> Iterator[Need]:
        """Yield weights and cache, which sleep while weights are updated on one of the GPUs."""
        from rolecall.models.memory_needs import BYTES, HOST, Need, describe_cache, make_need
        from rolecall.placement.devices import takes_turns

        dtype, owner = self.config.sampling_dtype(policy), owner_name(self.config, policy)
        sleeps = takes_turns(self.config, policy, auto=auto)
        phase: Phase = "sampling" if sleeps else "always"
        count = None if size is None else size.parameters
        longest = longest_sampled(self.config, None if size is None else size.max_length)
        cache = int((self.section.cache_gb or CACHE_GB) * 1e9)
        for devices in self.devices(auto=auto):
            label = describe_cache(cache * len(devices), size, dtype, longest)
            for device in devices:
                each = BYTES[dtype] / len(devices)
                yield make_need(
                    owner, "weights", count, each, device, phase, HOST if sleeps else ""
                )
                yield Need(owner, label, cache, device, phase)

    def make(self, inputs: EngineInputs, **options: Any) -> VllmEngine:
        """Make the engine. Raises ConfigError where vLLM cannot take a model's updates."""
        from rolecall.engines.vllm import installed
        from rolecall.engines.vllm.engine import VllmEngine
        from rolecall.engines.vllm.engine_args import check_updates
        from rolecall.models.base_location import locate
        from rolecall.models.devices import device_named
        from rolecall.models.loading import read_end_ids
        from rolecall.models.tokenizers import num_tokens
        from rolecall.placement.devices import takes_turns

        config, name = self.config, self.policies[0]
        policy, auto = config.policies[name], str(device_named("auto"))
        tokenizer = inputs.tokenizers[name]
        is_updated = name in config.trained_policies and policy.adapter is None
        if is_updated and installed.on_cpu() and Path(locate(policy.base)).is_dir():
            check_updates(policy.base)
        sleeps = inputs.sleeps
        return VllmEngine(
            policy.base,
            {name: config.policies[name].adapter for name in self.policies},
            end_ids=read_end_ids(policy.base, tokenizer),
            options=self.section.model_copy(update={"dtype": config.sampling_dtype(name)}),
            device=self.devices(auto=auto)[0][0],
            takes_turns=takes_turns(config, name, auto=auto) if sleeps is None else sleeps,
            threads=inputs.threads,
            vocabulary=num_tokens(tokenizer),
        )

    async def make_hosted(self, inputs: EngineInputs) -> FileEngine:
        """Make the engine and wait for it. Raises what vLLM raises that cannot start."""
        engine = self.make(inputs)
        await engine.start()
        return engine
