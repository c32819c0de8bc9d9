"""Finds how a Python of this machine is reached inside a sandbox."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from rolecall.sandbox.base import SandboxError

QUESTIONS = """
import json, os, sys, sysconfig
from importlib.util import find_spec
print(json.dumps({
    "program": os.path.realpath(sys.executable),
    "made_of": getattr(sys, "_base_executable", "") or sys.executable,
    "prefix": os.path.realpath(sys.prefix),
    "base": os.path.realpath(sys.base_prefix),
    "packages": list(dict.fromkeys(map(sysconfig.get_path, ("purelib", "platlib")))),
    "shared": bool(sysconfig.get_config_var("Py_ENABLE_SHARED")),
    "pytest": find_spec("pytest") is not None,
}))
"""
HOME = "/opt/python"  # the path outside may lead through somebody's home directory


class Facts(TypedDict):
    program: str
    made_of: str  # for a virtual environment: the Python it was made of
    prefix: str
    base: str  # prefix of that Python
    packages: list[str]  # directories
    shared: bool  # its library is a file beside it
    pytest: bool


@dataclass(frozen=True, slots=True)
class Interpreter:
    program: str  # its path inside
    mounts: dict[str, str | None]  # directory inside -> outside, read-only; None: empty
    environment: dict[str, str]
    has_pytest: bool


def find_interpreter(python: str, *, packages: bool) -> Interpreter:
    """Find what a sandbox needs of `python`, in a virtual environment or not, with its packages if
    `packages`.

    They are mounted over those of the Python it was made of, so nothing else is importable.
    Raises SandboxError if it cannot be asked.
    """
    facts = _ask(python)
    base = facts if facts["prefix"] == facts["base"] else _ask(facts["made_of"])
    moved = not Path(base["prefix"]).is_relative_to("/usr")

    def inside(path: str) -> str:
        return str(Path(HOME, Path(path).relative_to(base["prefix"]))) if moved else path

    mounts: dict[str, str | None] = {HOME: base["prefix"]} if moved else {}
    for number, folder in enumerate(base["packages"]):
        if not packages:
            mounts[inside(folder)] = None
        elif facts["prefix"] != base["prefix"]:
            mounts[inside(folder)] = facts["packages"][number]
    environment = {"LD_LIBRARY_PATH": f"{HOME}/lib"} if moved and base["shared"] else {}
    return Interpreter(inside(base["program"]), mounts, environment, packages and facts["pytest"])


def _ask(python: str) -> Facts:
    try:
        process = subprocess.run(
            [python, "-I", "-c", QUESTIONS], capture_output=True, check=True, timeout=60
        )
        facts: Facts = json.loads(process.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise SandboxError(f"the sandbox's Python {python} cannot be started: {error}") from error
    return facts
