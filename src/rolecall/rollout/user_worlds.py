"""Checks the worlds of a user's environment before the first step of a run."""

from __future__ import annotations

import inspect
from collections.abc import Iterable

from rolecall.config.user_code_location import locate_class, locate_definition, locate_error
from rolecall.core.errors import ConfigError, first_line
from rolecall.core.interfaces.environment import Environment, World
from rolecall.core.types import Task

PACKAGE = __name__.partition(".")[0]
METHODS = {"reset": (), "step": ("agent", "action"), "score": ("episode",), "close": ()}


def is_scored_by_steps(world: World) -> bool:
    """Return whether a world has steps and no score: it is then the sum of what steps paid."""
    return not _has_own(world, "score") and _has_own(world, "step")


async def check_worlds(environment: Environment, firsts: Iterable[Task]) -> None:
    """Open a world of each part's first task and check its form. Raises ConfigError.

    Only environments of the user's own: those of the package may start processes.
    """
    parts = getattr(environment, "parts", {})
    for task in firsts:
        own = parts.get(task.family, environment)
        if type(own).__module__.partition(".")[0] == PACKAGE:
            continue
        try:
            world = environment.open(task, seed=0)
        except Exception as error:  # the boundary to user code
            where = locate_error(error) or locate_definition(own.open)
            kind = type(error).__name__
            raise ConfigError(
                f"environment: open: {kind}: {first_line(error)} ({where})"
            ) from error
        _check_form(world)
        await world.close()


def _check_form(world: object) -> None:
    kind = type(world)
    described = f"environment: {kind.__name__} ({locate_class(kind)})"
    if not isinstance(world, World):
        raise ConfigError(f"{described} is no World; write class {kind.__name__}(rolecall.World)")
    for name, arguments in METHODS.items():
        method = getattr(world, name)
        try:
            inspect.signature(method).bind(*arguments)
        except TypeError:
            shown = ", ".join(arguments)
            raise ConfigError(
                f"environment: {kind.__name__}.{name} ({locate_definition(method)}) is called as "
                f"{name}({shown}); write def {name}({', '.join(('self', *arguments))})"
            ) from None
    if not _has_own(world, "score") and not _has_own(world, "step"):
        raise ConfigError(
            f"{described} has neither score(episode) nor step(agent, action), so nothing says "
            "what an episode is worth; write one of them"
        )


def _has_own(world: World, method: str) -> bool:
    return getattr(getattr(world, method), "__func__", None) is not getattr(World, method)
