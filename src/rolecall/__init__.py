"""rolecall trains teams of LLM agents with reinforcement learning.

Nothing heavy is imported here: `import rolecall` takes well under a second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rolecall.algorithms.base import Algorithm as Algorithm
    from rolecall.api import evaluate as evaluate
    from rolecall.api import train as train
    from rolecall.core import Episode as Episode
    from rolecall.core import Task as Task
    from rolecall.core import Turn as Turn
    from rolecall.environments.base import Observation as Observation
    from rolecall.environments.base import World as World
    from rolecall.scope import Lock as Lock
    from rolecall.scope import Semaphore as Semaphore
    from rolecall.team import Team as Team
    from rolecall.tools.functions import tool as tool
    from rolecall.workflows.base import workflow as workflow

_PLACES = {
    "evaluate": "api",
    "train": "api",
    "Lock": "scope",
    "Semaphore": "scope",
    "Team": "team",
    "Algorithm": "algorithms.base",
    "Episode": "core",
    "Task": "core",
    "Turn": "core",
    "Observation": "environments.base",
    "World": "environments.base",
    "tool": "tools.functions",
    "workflow": "workflows.base",
}
__all__ = sorted(_PLACES)


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'rolecall' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"rolecall.{_PLACES[name]}"), name)
