"""The keys of the engines that a config can name; `auto` is one of the others by another name."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from rolecall.config.engine_section import EngineSection
from rolecall.config.served import (
    AnthropicEngineConfig,
    GoogleEngineConfig,
    OpenAIEngineConfig,
    SGLangEngineConfig,
)
from rolecall.config.vllm import VllmEngineConfig
from rolecall.core.json_types import Options

Dtype = Literal["float32", "bfloat16", "float16"]
BUILT_IN = ("local", "vllm", "sglang", "openai", "anthropic", "google")


class LocalEngineConfig(EngineSection):
    """The embedded engine, in this process, over the very weights being trained."""

    is_embedded = True
    runs_on_cluster = True

    name: Literal["local"] = "local"
    """The embedded engine."""
    dtype: Dtype | None = None
    """Data type of sampling; by default learner.dtype. Another one needs separate_weights. float16
    needs a GPU."""
    max_sequences: int = Field(256, ge=1, le=1_000_000)
    """Most completions that are sampled at once for one policy."""
    cache_gb: float = Field(2.0, gt=0, le=1e5)
    """Memory for the KV cache in GB, per base model."""
    free_on_update: bool = False
    """Free the KV cache while weights are updated. On a GPU the CUDA graphs are then recorded again
    after each update. On a CPU the cache is always freed."""
    separate_weights: bool = False
    """Sample with a copy of the weights that each update is published to. False: sample with the
    weights that are trained."""
    replicas: int = Field(1, ge=1, le=4096)
    """Number of engines that share the requests, each in a process of the cluster."""
    transfer: Literal["files", "direct"] = "files"
    """Way of new weights to engines of a cluster: in files, or from the learner's device."""

    @property
    def num_engines(self) -> int:
        return self.replicas

    @property
    def receives_directly(self) -> bool:
        return self.transfer == "direct"


class OwnEngineConfig(EngineSection):
    """An engine of your own."""

    is_embedded = True

    name: str
    """`path/to/file.py:name`, a class with the methods of
    `rolecall.core.interfaces.engine.Engine`."""
    options: Options = {}
    """Options of the class."""
    dtype: Dtype | None = None
    """Data type of sampling; by default learner.dtype. Another one needs separate_weights. float16
    needs a GPU."""
    separate_weights: bool = False
    """Sample with a copy of the weights that each update is published to."""


def _kind(given: Any) -> str:
    # What is no section is checked as a built-in one, which says what it should be.
    is_mapping = isinstance(given, Mapping)
    name = given.get("name", "local") if is_mapping else getattr(given, "name", "local")
    return name if name in BUILT_IN else "own"


EngineConfig = Annotated[
    Annotated[LocalEngineConfig, Tag("local")]
    | Annotated[VllmEngineConfig, Tag("vllm")]
    | Annotated[SGLangEngineConfig, Tag("sglang")]
    | Annotated[OpenAIEngineConfig, Tag("openai")]
    | Annotated[AnthropicEngineConfig, Tag("anthropic")]
    | Annotated[GoogleEngineConfig, Tag("google")]
    | Annotated[OwnEngineConfig, Tag("own")],
    Discriminator(_kind),
]


def automatic() -> str:
    """Return the engine that `auto` means here.

    It is vLLM if it is installed and CUDA is available, otherwise local.
    """
    import torch

    try:
        installed = bool(version("vllm"))
    except PackageNotFoundError:
        installed = False
    return "vllm" if installed and torch.cuda.is_available() else "local"
