"""The name of an optional package in, the package out, or an error that says what to install."""

from __future__ import annotations

import importlib
from types import ModuleType

from rolecall.config_errors import ConfigError


def optional(module: str, *, extra: str) -> ModuleType:
    """Raises ConfigError if the package is not installed."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            f"{module} is not installed: pip install 'rolecall[{extra}]' ({error})"
        ) from error
