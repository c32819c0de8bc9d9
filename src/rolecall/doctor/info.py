"""`rolecall info` lists what is installed and what can be named in a config."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import platform

import torch

from rolecall.config import registry
from rolecall.config.load import recipe_names
from rolecall.core.json_types import Record
from rolecall.models import base_location

PACKAGES = ("rolecall", "torch", "transformers", "peft", "math-verify", "pydantic")
EXTRAS = {  # extra -> module
    "tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlflow", "trackio": "trackio",
    "mcp": "mcp", "coach": "anthropic", "search": "bm25s", "dense": "sentence_transformers",
    "serve": "fastapi", "a2a": "a2a", "data": "sklearn", "gym": "gymnasium", "text": "sacrebleu",
    "textarena": "textarena",
    "weave": "weave", "quantize": "bitsandbytes", "ray": "ray",
}  # fmt: skip


def collect() -> Record:
    """Return versions, devices, extras and the built-in names of each kind."""
    return {
        "versions": {"python": platform.python_version()} | {p: _version(p) for p in PACKAGES},
        "devices": _devices(),
        "extras": {
            extra: importlib.util.find_spec(module) is not None for extra, module in EXTRAS.items()
        },
        "recipes": recipe_names(),
        "models": [f"tiny:{name}" for name in base_location.list_embedded()],
        **{f"{kind}s": sorted(names) for kind, names in registry.BUILT_IN.items() if names},
    }


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _devices() -> list[str]:
    devices = [f"cpu ({torch.get_num_threads()} threads)"]
    for number in range(torch.cuda.device_count()):
        devices.append(f"cuda:{number} ({torch.cuda.get_device_name(number)})")
    return devices
