"""Lets vLLM's workers say which layers of a model can have adapters.

vLLM imports this file in each worker (`worker_extension_cls`) and mixes the class into its own.
"""

from __future__ import annotations

from typing import Any


class Adapters:
    """What a worker is asked for through `collective_rpc`, beside vLLM's own methods."""

    model_runner: Any  # the worker's own

    def adapted_modules(self) -> list[str]:
        """Last parts of the names of layers, as checkpoints have them: q_proj, down_proj, ..."""
        adapters = self.model_runner.lora_manager._adapter_manager
        packed = adapters.packed_modules_mapping
        found = (packed.get(name, [name]) for name in adapters.supported_lora_modules)
        return sorted({part for names in found for part in names})
