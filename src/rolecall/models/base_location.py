"""Finds the folder of a base: of the package, on this machine, or in the cache."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from rolecall.models.known_models import KNOWN_MODELS, fetched_folder, find_fetched

GGUF = ".gguf"
# Models that the hub still finds by the names that they had before it asked for an owner.
UNOWNED = {
    **{
        name: f"openai-community/{name}"
        for name in ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")
    },
    "distilgpt2": "distilbert/distilgpt2",
}


def list_embedded() -> list[str]:
    """Return the names of the models inside the package."""
    root = Path(str(files("rolecall.tiny")))
    return sorted(path.parent.name for path in root.glob("*/model.safetensors"))


def embedded_folder(name: str) -> Path:
    """Return the folder of an embedded model; raises ValueError that lists the models there are."""
    path = Path(str(files("rolecall.tiny"))) / name
    if not (path / "model.safetensors").is_file():
        available = ", ".join(f"tiny:{n}" for n in list_embedded()) or "none"
        raise ValueError(f"there is no embedded model tiny:{name} (there are: {available})")
    return path


def locate(base: str) -> str:
    """Return the folder of a base, or its name on the hub where it is not on this machine.

    In this order: `tiny:NAME`, a folder, a GGUF file, the short name of a small model, a name on
    the hub (gpt2 stands for openai-community/gpt2). A GGUF file is converted when it is first
    located. Raises ValueError for what is not
    there and for a file that cannot be read.
    """
    if base.startswith("tiny:"):
        return str(embedded_folder(base.removeprefix("tiny:")))
    path = Path(base).expanduser()
    if path.is_dir():
        return str(path)
    if path.suffix == GGUF:
        from rolecall.models.gguf_file import convert_into_cache  # with transformers

        return str(convert_into_cache(path))
    if model := KNOWN_MODELS.get(base):
        fetched = find_fetched(model)
        return model.hub if fetched is None else str(fetched)
    if base in UNOWNED:
        return UNOWNED[base]
    looks_local = base.startswith((".", "/", "~")) or base.count("/") != 1
    if looks_local or path.exists():
        raise ValueError(f"base {base!r}: there is no such model folder")
    return base


def exported_name(base: str) -> str:
    """Return the name by which transformers and PEFT find a base that an export names.

    A model that came from a package or a GGUF file is named by its folder: its weights are not
    those of the hub.
    """
    if (model := KNOWN_MODELS.get(base)) is not None:
        location = locate(base)
        return location if location == str(fetched_folder(model)) else model.hub
    return locate(base) if base.endswith(GGUF) else base
