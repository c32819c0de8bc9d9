"""The name of an optional package, or of a model of one, in; it, or what is missing, out."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any, Literal

from rolecall.config.errors import ConfigError


def optional(module: str, *, extra: str) -> ModuleType:
    """Raises ConfigError if the package is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"{module} is not installed: pip install 'rolecall[{extra}]' ({error})"
        ) from error


def sentence_model(kind: Literal["SentenceTransformer", "CrossEncoder"], model: str) -> Any:
    """A model of sentence-transformers (a name or a folder). Raises ValueError if there is none."""
    library = optional("sentence_transformers", extra="dense")
    try:
        return getattr(library, kind)(model)
    except OSError as error:
        raise ValueError(f"no model {model!r}: {str(error).splitlines()[0]}") from error
