"""The keys of the `engine` section of a config whose engine is vLLM."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rolecall.config.engine_section import EngineSection


class VllmEngineConfig(EngineSection):
    """vLLM, in a process of its own: `pip install 'rolecall[vllm]'`."""

    label = "vLLM"
    runs_on_cluster = True
    can_sleep = True

    name: Literal["vllm"] = "vllm"
    """vLLM 0.32, with weights of its own that each update is published to."""
    tensor_parallel: int = Field(1, ge=1, le=1024)
    """Number of GPUs that hold the model together; it must divide the number of heads."""
    device: str | None = None
    """Its first GPU, such as cuda or cuda:1. By default it shares the GPU of the policy's learner
    and sleeps while weights are updated."""
    replicas: int = Field(1, ge=1, le=4096)
    """Number of engines that share the requests, each in a process of the cluster."""
    memory: float = Field(0.9, gt=0, le=1)
    """Share of each GPU's memory that vLLM may use; it has no effect on a CPU."""
    cache_gb: float | None = Field(None, gt=0, le=1e5)
    """Memory for the KV cache in GB; by default what `memory` leaves on a GPU, and 2 on a CPU."""
    max_sequences: int = Field(256, ge=1, le=1_000_000)
    """Most completions that are sampled at once; further requests wait."""
    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """Data type of sampling; by default learner.dtype. float16 needs a GPU."""
    max_length: int | None = Field(None, ge=2, le=100_000_000)
    """Most tokens of a prompt and its answer together; by default the model's context."""
    eager: bool = False
    """Skip compilation and CUDA graphs: vLLM starts sooner and samples more slowly."""
    transfer: Literal["files", "direct"] = "files"
    """Way of new weights to vLLM: in files, or from the learner's device (`direct`): by NCCL from
    other GPUs, CUDA IPC on the same GPU, gloo on CPUs. `direct` has not run on GPUs yet. Adapters
    always come in files."""
    start_timeout_s: float = Field(600.0, gt=0, le=1e6)
    """Time limit for loading the model, in seconds."""
    log: str | None = None
    """File to append vLLM's output to; by default a temporary file, quoted if vLLM fails."""

    @property
    def separate_weights(self) -> bool:
        """Each update publishes to it."""
        return True

    @property
    def num_engines(self) -> int:
        return self.replicas

    @property
    def gpus_per_engine(self) -> int:
        return self.tensor_parallel

    @property
    def first_device(self) -> str | None:
        return self.device

    @property
    def longest_row(self) -> int | None:
        return self.max_length

    @property
    def receives_directly(self) -> bool:
        return self.transfer == "direct"
