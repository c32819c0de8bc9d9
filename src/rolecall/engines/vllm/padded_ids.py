"""Keeps vLLM from sampling ids that the tokenizer does not have.

Heads are padded, as that of Qwen3 is by 267 ids. vLLM loads this class by its name in the process
that samples. It masks nothing where `score` reads the log-probs of a prompt: vLLM's processors see
only what is sampled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, device
from vllm.v1.sample.logits_processor import LogitsProcessor

from rolecall.engines.vllm.engine_args import VOCABULARY

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.sample.logits_processor import BatchUpdate


class MaskPaddedIds(LogitsProcessor):
    """Gives the logits behind the tokenizer's ids no probability."""

    def __init__(self, vllm_config: VllmConfig, device: device, is_pin_memory: bool) -> None:
        assert isinstance(vllm_config.additional_config, dict)
        self._vocabulary: int = vllm_config.additional_config[VOCABULARY]

    def apply(self, logits: Tensor) -> Tensor:
        logits[:, self._vocabulary :] = float("-inf")
        return logits

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Do nothing: no state depends on the requests."""
