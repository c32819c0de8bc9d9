"""Declares what a workflow is: an async function, and what it needs.

@workflow
async def duet(team, task, world, rounds: int = 2): ...
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, overload

from rolecall.agents.agent import Parser
from rolecall.agents.team import Team
from rolecall.core.types import Task, Turn

# What a workflow finds in a team beside its agents.
RESERVED = (
    "role", "choose", "saw", "enter", "random", "observation", "step", "names", "episode",
    "tries_out",
)  # fmt: skip
Play = Callable[..., Awaitable[Turn | str | None]]


@dataclass(frozen=True, slots=True)
class Workflow:
    """A named conversation, the roles it calls and the form it expects of their words."""

    name: str
    play: Play  # play(team, task, world, **options) -> the answer
    roles: tuple[str, ...]
    calls_others: bool = False  # it may call agents that its source does not name
    candidates: bool = False  # it draws several answers to one prompt and plays one of them
    plays_candidates: bool = False  # it plays all of them
    is_group: bool = False  # its turns answer one task and are paid each: an attempt is a group
    forks: bool = False  # it tries answers out in forks of the world
    parsers: dict[str, Parser] = field(default_factory=dict)  # role -> parser
    answers: bool = True  # its source returns something, be it None
    is_external: bool = False  # a program outside keeps the conversation
    close: Callable[[], Awaitable[None]] | None = None  # ends what its episodes have started

    async def __call__(self, team: Team, task: Task, world: Any, **options: Any) -> Any:
        return await self.play(team, task, world, **options)


@overload
def workflow(play: Play, /) -> Workflow: ...
@overload
def workflow(
    *,
    parsers: dict[str, Parser] | None = None,
    candidates: bool = False,
    plays_candidates: bool = False,
    is_group: bool = False,
    forks: bool = False,
) -> Callable[[Play], Workflow]: ...


def workflow(
    play: Play | None = None,
    /,
    *,
    parsers: dict[str, Parser] | None = None,
    candidates: bool = False,
    plays_candidates: bool = False,
    is_group: bool = False,
    forks: bool = False,
) -> Workflow | Callable[[Play], Workflow]:
    """Make a workflow of an async function `(team, task, world, <options>)`.

    Roles are read from its source: every `team.NAME(...)` and `team.role("NAME")`. What else it
    needs is declared: `candidates` where it calls `team.NAME.candidates(...)`, `plays_candidates`
    where it plays all of them, `is_group` where each turn is an answer to the task that is paid for
    itself, and `forks` where it calls `world.fork()`; `play_best` needs candidates and forks.
    """

    def make(function: Play) -> Workflow:
        if not inspect.iscoroutinefunction(function):
            named = getattr(function, "__name__", repr(function))
            raise ValueError(f"workflow {named!r} must be an async function; write `async def`")
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
        roles, calls_others = _roles(tree, next(iter(inspect.signature(function).parameters)))
        return Workflow(
            name=function.__name__,
            play=function,
            roles=roles,
            calls_others=calls_others,
            candidates=candidates,
            plays_candidates=plays_candidates,
            is_group=is_group,
            forks=forks,
            parsers=parsers or {},
            answers=_returns(tree.body[0]),
        )

    return make if play is None else make(play)


def _returns(function: ast.AST) -> bool:
    """Return whether a function has a `return` with a value of its own, or ends by raising."""
    own: list[ast.AST] = list(ast.iter_child_nodes(function))
    while own:
        node = own.pop()
        if isinstance(node, ast.Return | ast.Raise) and not (
            isinstance(node, ast.Return) and node.value is None
        ):
            return True
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            own += ast.iter_child_nodes(node)
    return False


def _roles(tree: ast.AST, team: str) -> tuple[tuple[str, ...], bool]:
    roles: dict[str, None] = {}
    mentions = 0
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Name(id=owner), attr="role"),
                args=[ast.Constant(value=str(name))],
            ) if owner == team:
                roles[name] = None
            case ast.Attribute(value=ast.Name(id=owner), attr=name) if owner == team:
                roles[name] = None
                mentions -= 1
            case ast.Subscript(value=ast.Name(id=owner), slice=ast.Constant(value=str(name))) if (
                owner == team
            ):
                roles[name] = None
                mentions -= 1
            case ast.Name(id=owner) if owner == team:
                mentions += 1
    for name in RESERVED:
        roles.pop(name, None)
    return tuple(roles), mentions > 0
