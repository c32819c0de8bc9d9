"""Makes the tool calls of an agent's turn and returns what the tools said.

A bad call is data: it is told to the agent, counted on the episode and written on the turn. Only a
tool that is itself broken (InfrastructureError) ends the episode.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

from rolecall.core.errors import ConfigError, InfrastructureError, first_error
from rolecall.core.interfaces.environment import World
from rolecall.core.interfaces.tool import Format, Tool, ToolError, noting_files
from rolecall.core.json_types import JsonObject
from rolecall.core.tags import encodable
from rolecall.core.types import Episode, Turn
from rolecall.tools.call_parsing import Call, cut, read_calls, share_length


class Toolkit(Protocol):
    """Tools that belong to one episode: a session, a folder, a connection.

    A toolkit may have `async def check(self)` too, which raises where no episode could open it: a
    run calls it once, before its first step.
    """

    def open(self, world: World, *, seed: int) -> AbstractAsyncContextManager[list[Tool]]: ...


@dataclass(frozen=True, slots=True)
class Stateless:
    """A tool that serves all episodes at once, as a toolkit."""

    tool: Tool

    @asynccontextmanager
    async def open(self, world: World, *, seed: int) -> AsyncIterator[list[Tool]]:
        yield [self.tool]


class WorldTools:
    """Whatever tools the episode's world offers."""

    async def check_in(self, world: World) -> None:
        """Check that a world, once it is reset, offers tools; raises ValueError otherwise."""
        await world.reset()
        self._offered(world)

    @asynccontextmanager
    async def open(self, world: World, *, seed: int) -> AsyncIterator[list[Tool]]:
        # In a mixture some parts may have no tools.
        yield world.tools() if world.is_part else self._offered(world)

    def _offered(self, world: World) -> list[Tool]:
        if offered := world.tools():
            return offered
        raise ValueError(
            f"{type(world).__name__} offers no tools, and `world` stands for its "
            "tools: name others, or take `world` out"
        )


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The tools that an agent may call, and how often."""

    kits: tuple[Toolkit, ...]
    format: Format = "native"
    max_calls: int = 8  # answers with calls, after which the agent is not asked again
    calls_per_turn: int = 16  # of one answer; those beyond it are not made
    timeout_s: float = 30.0  # of one call of a tool that does not end itself
    result_chars: int = 4_000  # longer results keep their head and their tail
    chars_per_turn: int = 16_000  # of all results of one answer together, shared alike


@dataclass(slots=True)
class OpenTools:
    """The tools of one episode; a kit is opened once, whoever of the team uses it.

    One that is private (`is_private`) is opened for each agent.
    """

    world: World
    seed: int
    stack: AsyncExitStack
    _tools: dict[tuple[int, int], list[Tool]] = field(default_factory=dict)  # by kit and agent
    _opening: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def file_sizes(self) -> dict[str, int]:
        """Name -> bytes of what the world holds now; nothing, where it has no `files`."""
        files: Mapping[str, bytes | str] = getattr(self.world, "files", None) or {}
        return {
            name: len(held.encode() if isinstance(held, str) else held)
            for name, held in sorted(files.items())
        }

    async def offered_tools(self, use: ToolUse) -> list[Tool]:
        """Return the tools that an agent may use; raises ValueError for two tools of one name."""
        async with self._opening:
            for kit in use.kits:
                if _key(kit, use) not in self._tools:
                    opened = kit.open(self.world, seed=self.seed)
                    self._tools[_key(kit, use)] = await self.stack.enter_async_context(opened)
        tools = [tool for kit in use.kits for tool in self._tools[_key(kit, use)]]
        twice = [name for name, count in Counter(tool.name for tool in tools).items() if count > 1]
        if twice:
            raise ValueError(f"two tools of an agent are called {', '.join(twice)}")
        return tools


def _key(kit: Toolkit, use: ToolUse) -> tuple[int, int]:
    """Return what tells opened kits apart: those of one agent only where they are private."""
    return id(kit), id(use) if getattr(kit, "is_private", False) else 0


async def check_kits(
    uses: Mapping[str, ToolUse], *, worlds: Sequence[Callable[[], World]] = ()
) -> None:
    """Try out each agent's kits once. Raises ConfigError naming the agent and the number of the
    tool where one cannot be opened.

    `worlds` open a world of a train task, of each part where several are mixed, for kits that offer
    what one of them has.
    """
    checked: set[int] = set()
    for name, use in uses.items():
        for number, kit in enumerate(use.kits):
            if id(kit) in checked:
                continue
            checked.add(id(kit))
            try:
                await _check(kit, worlds=worlds)
            except (Exception, SystemExit) as error:
                raise ConfigError(
                    f"team.{name}.tools.use[{number}]: {first_error(error)}"
                ) from error


async def _check(kit: Toolkit, *, worlds: Sequence[Callable[[], World]]) -> None:
    if isinstance(kit, WorldTools):
        await _check_worlds(kit, worlds)
    check = getattr(kit, "check", None)
    if check is not None:
        await check()


async def _check_worlds(kit: WorldTools, worlds: Sequence[Callable[[], World]]) -> None:
    """Raise ValueError, with what the last of the worlds says, where none offers tools."""
    for number, world in enumerate(worlds, start=1):
        opened = world()
        try:
            await kit.check_in(opened)
            return
        except ValueError:
            if number == len(worlds):
                raise
        finally:
            await opened.close()


async def use_tools(
    turn: Turn, tools: list[Tool], use: ToolUse, *, episode: Episode
) -> list[tuple[Call, str]]:
    """Make the calls of a turn at once; results in the order of the calls, [] if there are none."""
    calls = read_calls(turn, use.format)
    if not calls:
        return []
    by_name = {tool.name: tool for tool in tools}
    accepted = calls[: use.calls_per_turn]
    with noting_files() as written:
        async with asyncio.TaskGroup() as group:
            running = [group.create_task(_make(call, by_name, use)) for call in accepted]
    results = [task.result() for task in running]
    if written:
        turn.tools.files_written = sorted(set(written))
    turn.valid = turn.valid and not any(
        problem in ("malformed", "unknown") for _, problem in results
    )
    if len(accepted) < len(calls):
        accepted.append(Call(calls[len(accepted)].name))
        results.append((_too_many(len(calls), use.calls_per_turn), "too_many"))
    texts = share_length([text for text, _ in results], use.chars_per_turn)
    if texts != [text for text, _ in results]:
        episode.count("tool_results_cut")
    outcomes = [(text, problem) for text, (_, problem) in zip(texts, results, strict=True)]
    turn.tools.calls = [
        _written(call, *outcome) for call, outcome in zip(accepted, outcomes, strict=True)
    ]
    for _, problem in outcomes:
        episode.count(f"tool_{problem or 'calls'}")
    return [(call, text) for call, (text, _) in zip(accepted, outcomes, strict=True)]


def _too_many(number: int, most: int) -> str:
    return (
        f"Error: you made {number} calls in one message. Only the first {most} were made; "
        f"make at most {most} at once"
    )


async def _make(call: Call, tools: dict[str, Tool], use: ToolUse) -> tuple[str, str]:
    """Make a call; return what the agent is told, and the kind of problem or ""."""
    if call.problem:
        return cut(f"Error: {call.problem}", use.result_chars), "malformed"
    if call.name not in tools:
        message = f"Error: there is no tool {call.name!r}; there are: {', '.join(tools)}"
        return cut(message, use.result_chars), "unknown"
    tool = tools[call.name]
    try:
        async with asyncio.timeout(None if tool.ends_itself else use.timeout_s):
            output = await tool.call(**call.arguments)
    except InfrastructureError:
        raise
    except TimeoutError:
        return f"Error: no answer within {use.timeout_s:g} s", "timeouts"
    except ToolError as error:
        return cut(encodable(f"Error: {error}"), use.result_chars), "refused"
    except (Exception, SystemExit) as error:  # the boundary to tools: what they raise is data
        return cut(encodable(f"Error: {type(error).__name__}: {error}"), use.result_chars), "raised"
    return cut(encodable(output), use.result_chars), ""


def _written(call: Call, text: str, problem: str) -> JsonObject:
    record = {"name": call.name, "arguments": call.arguments, "result": text}
    return record | ({"problem": problem} if problem else {})
