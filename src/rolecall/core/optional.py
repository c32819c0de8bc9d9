"""Imports a package of an extra, or says in one line how to install it."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Literal

from rolecall.core.errors import ConfigError, first_line
from rolecall.core.versions import check_versions


def optional(module: str, *, extra: str, key: str = "") -> ModuleType:
    """Import a module.

    Raises ConfigError, under `key` if it is set, if the module is missing or of a wrong version.
    """
    with needs(module, extra=extra, key=key):
        return importlib.import_module(module)


@contextmanager
def needs(package: str, *, extra: str, key: str = "") -> Iterator[None]:
    """Guard the imports at the top of a file that needs an extra; raises what `optional` does.

    with needs("gymnasium", extra="gym"):
        import gymnasium
    """
    prefix = f"{key}: " if key else ""
    try:
        yield
    except ImportError as error:
        raise ConfigError(
            f"{prefix}{package} is not installed: pip install 'rolecall[{extra}]' ({error})"
        ) from error
    try:
        check_versions(extra, package)
    except ConfigError as error:
        raise ConfigError(*(f"{prefix}{problem}" for problem in error.problems)) from error


def sentence_model(kind: Literal["SentenceTransformer", "CrossEncoder"], model: str) -> Any:
    """Load a sentence-transformers model (a name or a folder); raises ValueError for any other."""
    library = optional("sentence_transformers", extra="dense")
    try:
        return getattr(library, kind)(model)
    except OSError as error:
        raise ValueError(f"no model {model!r}: {first_line(error)}") from error
