"""Lets vLLM's workers take adapters from files, and say which layers can have them.

vLLM imports this file in each worker (`worker_extension_cls`) and mixes the class into its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from vllm.lora.request import LoRARequest

from rolecall.core.errors import first_line

if TYPE_CHECKING:
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner


class Adapters:
    """Answers `collective_rpc` in a worker, beside vLLM's own methods."""

    model_runner: GPUModelRunner  # the worker's own
    add_lora: Callable[[LoRARequest], bool]

    def start_adapters(self, names: list[str]) -> None:
        """Give the adapters 1, 2, ... weights of 0, as LoRA's B has before the first update: then
        requests belong to them from the start, and get new weights while they are under way.
        """
        for number, name in enumerate(names, 1):
            self.model_runner.lora_manager.add_dummy_lora(LoRARequest(name, number, "none"), rank=1)

    def take_adapter(self, name: str, number: int, folder: str) -> str:
        """Load an adapter in the place of the one with its number; why that failed, or "".

        The old one is then kept. What is raised here would stand in the way: of several workers
        vLLM reads the first one's error, and takes the others' for the answers to its next call.
        """
        try:
            self.add_lora(LoRARequest(name, number, folder, load_inplace=True))
        except Exception as error:
            return first_line(error)
        return ""

    def adapted_modules(self) -> list[str]:
        """Last parts of the names of layers, as checkpoints have them: q_proj, down_proj, ..."""
        adapters = self.model_runner.lora_manager._adapter_manager
        packed = adapters.packed_modules_mapping
        modules = (packed.get(name, [name]) for name in adapters.supported_lora_modules)
        return sorted({last for names in modules for last in names})
