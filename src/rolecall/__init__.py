"""rolecall trains teams of LLM agents with reinforcement learning.

Nothing heavy is imported here: `import rolecall` takes well under a second.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rolecall.algorithms.base import Algorithm as Algorithm
    from rolecall.algorithms.policy_loss import ClippedLoss as ClippedLoss
    from rolecall.core.interfaces.environment import Observation as Observation
    from rolecall.core.interfaces.environment import World as World
    from rolecall.core.types import Episode as Episode
    from rolecall.core.types import Task as Task
    from rolecall.core.types import Turn as Turn
    from rolecall.runs.api import evaluate as evaluate
    from rolecall.runs.api import evaluate_async as evaluate_async
    from rolecall.runs.api import load_run as load_run
    from rolecall.runs.api import train as train
    from rolecall.runs.api import train_async as train_async
    from rolecall.runs.trained_team import Team as Team
    from rolecall.runtime.call_tree import Lock as Lock
    from rolecall.runtime.call_tree import Semaphore as Semaphore
    from rolecall.tools.functions import tool as tool
    from rolecall.workflows.base import workflow as workflow

_PLACES = {
    "evaluate": "runs.api",
    "evaluate_async": "runs.api",
    "load_run": "runs.api",
    "train": "runs.api",
    "train_async": "runs.api",
    "Lock": "runtime.call_tree",
    "Semaphore": "runtime.call_tree",
    "Team": "runs.trained_team",
    "Algorithm": "algorithms.base",
    "ClippedLoss": "algorithms.policy_loss",
    "Episode": "core.types",
    "Task": "core.types",
    "Turn": "core.types",
    "Observation": "core.interfaces.environment",
    "World": "core.interfaces.environment",
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
