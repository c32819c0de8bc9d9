"""Lets vLLM's workers take all weights of a model from safetensors files.

vLLM imports this file in each worker before it makes the model (`worker_extension_cls`), and mixes
the class into its own worker. Every worker reads what it needs of files that
are named to it, or of weights that are sent from a learner's device.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from safetensors import safe_open
from torch import Tensor
from vllm.config import set_current_vllm_config
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.model_loader.reload import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)
from vllm.platforms import current_platform

from rolecall.core.errors import first_line
from rolecall.core.interfaces.learner import Rendezvous
from rolecall.core.json_types import JsonObject
from rolecall.models.weight_transfer import Receiver

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner


class WholeWeights:
    """Answers `collective_rpc` in a worker, beside vLLM's own methods."""

    model_runner: GPUModelRunner  # the worker's own
    vllm_config: VllmConfig
    rank: int
    device: torch.device
    _receiver: Receiver | None = None

    def take_files(self, files: list[str]) -> str:
        """Load the weights in safetensors files by the names of the checkpoint; why that failed,
        or "". What is raised would stand in the way, as in `adapter_worker.py`.
        """
        return self._take(_tensors(files))

    def take_sent(self, at: JsonObject, number: int) -> str:
        """Load the weights that are sent to a rendezvous, whose receiver `number` is the first of
        vLLM's workers; why that failed, or "".
        """
        if self._receiver is None:
            self._receiver = Receiver(self.device)
        return self._take(self._receiver.weights(Rendezvous(**at), number + self.rank))

    def _take(self, weights: Iterator[tuple[str, Tensor]]) -> str:
        """Load the weights, and return why that failed, or ""."""
        try:
            with set_current_vllm_config(self.vllm_config), torch.no_grad():
                self._load(weights)
        except Exception as error:
            return first_line(error)
        return ""

    def _load(self, weights: Iterator[tuple[str, Tensor]]) -> None:
        """Load the weights layer by layer, and lay each layer out as the kernels want it.

        Raises ValueError where one of the model's weights is not among them, and for layers whose
        layout vLLM cannot make again on a CPU.
        """
        model, on_cpu = self.model_runner.get_model(), current_platform.is_cpu()
        if on_cpu and any(map(_is_packed_once, model.modules())):
            raise ValueError(
                "vLLM on a CPU lays out experts and convolutions once and takes no new weights for "
                "them; sample this policy on a GPU, or with engine.name: local"
            )
        names = {name for name, _ in model.named_parameters()}
        initialize_layerwise_reload(model)
        try:
            loaded = model.load_weights(weights)
        finally:
            finalize_layerwise_reload(model, self.vllm_config.model_config)
        for layer in model.modules() if on_cpu else ():
            if isinstance(layer, VocabParallelEmbedding):  # vLLM skips heads tied to embeddings
                layer.quant_method.process_weights_after_loading(layer)
        if missing := sorted(names - loaded):
            raise ValueError(f"weights are missing: {missing[:3]}, {len(missing)} in all")


def _is_packed_once(layer: torch.nn.Module) -> bool:
    """Return whether a layer holds experts or a convolution in the layout of a CPU's kernels."""
    return hasattr(layer, "w13_weight") or hasattr(layer, "_cpu_unpacked_conv_weight")


def _tensors(files: list[str]) -> Iterator[tuple[str, Tensor]]:
    for file in files:
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118  (it is no mapping)
                yield name, opened.get_tensor(name)
