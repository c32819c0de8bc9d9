"""Answers what a run asks of the embedded engine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from rolecall.config.engines import LocalEngineConfig
from rolecall.config.row_lengths import longest_sampled
from rolecall.engines.backend import EngineBackend, owner_name

if TYPE_CHECKING:
    from rolecall.core.interfaces.engine import Engine
    from rolecall.core.interfaces.publisher import FileEngine
    from rolecall.engines.inputs import EngineInputs
    from rolecall.models.memory_needs import Need, Phase
    from rolecall.models.sizes import Size


class LocalBackend(EngineBackend):
    """The embedded engine: one cache for each base, over the weights being trained or a copy."""

    section: LocalEngineConfig

    @property
    def hosted_abilities(self) -> frozenset[str]:
        from rolecall.engines.local.hosted import HostedEngine

        return HostedEngine.can

    def memory(self, policy: str, size: Size | None, *, auto: str) -> Iterator[Need]:
        from rolecall.models.devices import is_gpu
        from rolecall.models.memory_needs import Need, describe_cache

        yield from super().memory(policy, size, auto=auto)
        config, owner = self.config, owner_name(self.config, policy)
        dtype = config.sampling_dtype(policy)
        for [device] in self.devices(auto=auto):
            on_cpu = not is_gpu(device)
            phase: Phase = "sampling" if on_cpu or self.section.free_on_update else "always"
            kept = "float32" if on_cpu else dtype  # keys and values
            cache = self._cache(policy, size, kept, is_lazy=on_cpu)
            longest = longest_sampled(config, None if size is None else size.max_length)
            yield Need(owner, describe_cache(cache, size, kept, longest), cache, device, phase)
            if on_cpu and size is not None and config.policies[policy].quantization == "none":
                yield _laid_out(owner, size, dtype, device)

    def working_memory(self, policy: str, size: Size | None, *, auto: str) -> Iterator[Need]:
        from rolecall.engines.local.working_memory import pass_memory
        from rolecall.models.devices import is_gpu
        from rolecall.models.memory_needs import Need

        if size is None or self.config.is_replicated(policy):
            return
        held = pass_memory(self.config, policy, self.section, size)
        for [device] in self.devices(auto=auto):
            if not is_gpu(device):
                owner = owner_name(self.config, policy)
                yield Need(owner, held.label, held.num_bytes, device, "sampling")

    def make(self, inputs: EngineInputs, **options: Any) -> Engine:
        from rolecall.engines.local.cached_tokens import cached_tokens
        from rolecall.engines.local.engine import LocalEngine

        return LocalEngine(
            inputs.models,
            barrier=inputs.barrier,
            deterministic=inputs.deterministic,
            max_sequences=self.section.max_sequences,
            cache_gb=self.section.cache_gb,
            free_on_update=self.section.free_on_update,
            expected_ids={
                name: cached_tokens(self.config, name, self.section, model.max_length)
                for name, model in inputs.models.items()
            },
        )

    async def make_hosted(self, inputs: EngineInputs) -> FileEngine:
        from rolecall.engines.local.hosted import HostedEngine

        return HostedEngine(
            inputs.models,
            barrier=inputs.barrier,
            deterministic=False,
            max_sequences=self.section.max_sequences,
            cache_gb=self.section.cache_gb,
        )

    def _cache(self, policy: str, size: Size | None, dtype: str, *, is_lazy: bool) -> int:
        """Return the bytes of `cache_gb`, at most what rows can fill.

        `is_lazy`: on a CPU only what is written takes memory.
        """
        from rolecall.engines.local.cached_tokens import cached_tokens
        from rolecall.engines.local.page_allocator import count_pages
        from rolecall.models.cpu.kernels import PAGE
        from rolecall.models.memory_needs import BYTES

        most = int(self.section.cache_gb * 1e9)
        if size is None or not size.cache_per_token:
            return most
        tokens = self.section.max_sequences * count_pages(size.max_length) * PAGE
        if is_lazy and not self.config.is_replicated(policy):
            expected = cached_tokens(self.config, policy, self.section, size.max_length)
            tokens = min(tokens, expected)
        return min(most, tokens * size.cache_per_token * BYTES[dtype])


def _laid_out(owner: str, size: Size, dtype: str, device: str) -> Need:
    """Return copies of weights as products read them; models of other families have none."""
    from rolecall.models.memory_needs import BYTES, Need
    from rolecall.models.quantized import linear_layers

    layers = sum(layer.weight.numel() for layer in linear_layers(size.model).values())
    count = layers + size.embedding
    held = BYTES[dtype] * count
    return Need(owner, "weights laid out for products, at most", held, device, parameters=count)
