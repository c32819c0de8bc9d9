"""The keys of the learners that a config can name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from rolecall.config.section import Section
from rolecall.core.json_types import JsonValue, Options

Dtype = Literal["float32", "bfloat16", "auto"]


FLOAT16 = (
    "dtype: float16 is for sampling alone: gradients below 6e-8 are 0 in it, so training needs a "
    "loss that is scaled, by less after each overflow. Write bfloat16, which has the range of "
    "float32; `engine: {dtype: float16, separate_weights: true}` samples in float16 on a GPU"
)


class LocalLearnerConfig(Section):
    """Trains in this process."""

    is_ranked: ClassVar[bool] = False  # processes of its own train
    is_sharded: ClassVar[bool] = False  # each rank has a share of every weight

    name: Literal["local"] = "local"
    """Train in this process."""
    tokens_per_batch: int = Field(4096, ge=1, le=1_000_000_000)
    """Most tokens, prompts included, in one forward and backward pass."""
    device: str = "auto"
    """Device, such as cpu, cuda, cuda:1 or mps; auto uses a GPU if there is one."""
    dtype: Dtype = "float32"
    """Data type of forward and backward passes. With bfloat16, fully trained weights keep float32
    master weights, moments and summed gradients: 18 bytes a weight instead of 16. The head,
    log-probs and the weights of adapters stay float32. A bfloat16 weight moves when its master has
    moved by up to 1/256 of it, so a few small steps on all weights need float32. auto takes
    bfloat16 on a GPU and on a processor that multiplies it (AVX512-BF16 or AMX), else float32."""
    share_prefixes: bool = True
    """Compute prefixes that turns share, such as a group's prompt, once."""
    checkpoint_activations: bool = False
    """Keep only the inputs of layers and recompute the rest: less memory, 1.3 times the time."""
    offload: bool = False
    """Keep moments, master weights and references in CPU memory between updates."""

    @model_validator(mode="before")
    @classmethod
    def _replace_auto(cls, section: JsonValue) -> JsonValue:
        dtype = section.get("dtype") if isinstance(section, Mapping) else None
        if dtype in ("float16", "fp16", "half"):
            raise ValueError(FLOAT16)
        if isinstance(section, Mapping) and dtype == "auto":
            return {**section, "dtype": choose_dtype(str(section.get("device", "auto")))}
        return section

    @property
    def num_ranks(self) -> int:
        """Return how many processes of its own train; 0 where this process does."""
        return 0

    @property
    def row_sharers(self) -> int:
        """Return how many ranks share the heads of one row."""
        return 1


class RankedLearnerConfig(LocalLearnerConfig):
    """Trains in processes of its own, its ranks: each is a GPU, or a process without one."""

    is_ranked = True

    ranks: int = Field(2, ge=1, le=4096)
    """Number of processes that train together."""
    start_timeout_s: float = Field(300.0, gt=0, le=1e7)
    """Time limit for the start of all ranks, in seconds."""

    @property
    def num_ranks(self) -> int:
        return self.ranks


class ReplicatedLearnerConfig(RankedLearnerConfig):
    """Each rank has the whole model; gradients are added up once an optimizer step."""

    name: Literal["replicated"] = "replicated"  # type: ignore[assignment]
    """Each rank holds the whole model."""


class FsdpLearnerConfig(RankedLearnerConfig):
    """Each rank has a share of every weight (PyTorch's FSDP2)."""

    is_sharded = True

    name: Literal["fsdp"] = "fsdp"  # type: ignore[assignment]
    """Each rank holds a share of every weight."""
    context_parallel: int = Field(1, ge=1, le=4096)
    """Number of ranks that share the attention heads of one long row (Ulysses)."""

    @property
    def row_sharers(self) -> int:
        return self.context_parallel


class OwnLearnerConfig(LocalLearnerConfig):
    """A learner of your own."""

    name: str  # type: ignore[assignment]
    """`path/to/file.py:name`, a class with the methods of
    `rolecall.core.interfaces.learner.Learner`."""
    options: Options = {}
    """Options of the class."""


def _kind(given: Any) -> str:
    # What is no section is checked as a built-in one, which says what it should be.
    is_mapping = isinstance(given, Mapping)
    name = given.get("name", "local") if is_mapping else getattr(given, "name", "local")
    return name if name in ("local", "replicated", "fsdp") else "own"


LearnerConfig = Annotated[
    Annotated[LocalLearnerConfig, Tag("local")]
    | Annotated[ReplicatedLearnerConfig, Tag("replicated")]
    | Annotated[FsdpLearnerConfig, Tag("fsdp")]
    | Annotated[OwnLearnerConfig, Tag("own")],
    Discriminator(_kind),
]


def choose_dtype(device: str) -> Literal["float32", "bfloat16"]:
    """Return the data type that `auto` means on this device of this machine."""
    import torch

    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device.startswith("cuda"):
        return "bfloat16"
    capabilities = torch.cpu.get_capabilities()
    is_fast = device == "cpu" and any(map(capabilities.get, ("avx512_bf16", "amx_bf16")))
    return "bfloat16" if is_fast else "float32"
