"""Tools of a real MCP server, and a server that fails in every way it can."""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

pytest.importorskip("mcp", reason="the extra rolecall[mcp] is not installed")

from rolecall.environments.base import World
from rolecall.errors import InfrastructureError
from rolecall.tools.base import Tool, ToolError
from rolecall.tools.mcp import Mcp

SERVER = [sys.executable, str(Path(__file__).with_name("mcp_server.py"))]


async def opened(stack, kit: Mcp) -> dict[str, Tool]:
    return {tool.name: tool for tool in await stack.enter_async_context(kit.open(World(), seed=0))}


def in_episode(kit: Mcp, work):
    async def main():
        async with AsyncExitStack() as stack:
            return await work(await opened(stack, kit))

    return asyncio.run(main())


def test_the_servers_tools_are_the_agents_tools():
    async def work(tools):
        assert sorted(tools) == ["add", "die", "fail", "sleep"]
        assert tools["add"].signature.startswith("add(a: integer, b: integer): The sum")
        answers = await asyncio.gather(*(tools["add"].call(a=n, b=1) for n in range(20)))
        assert answers == [str(n + 1) for n in range(20)]
        with pytest.raises(ToolError, match="fail"):
            await tools["fail"].call()
        with pytest.raises(ToolError):
            await tools["add"].call(a="x", b=1)
        assert await tools["add"].call(a=1, b=1) == "2"

    in_episode(Mcp(command=SERVER), work)


def test_only_the_named_tools_are_offered():
    async def work(tools):
        return sorted(tools)

    assert in_episode(Mcp(command=SERVER, only=["add"]), work) == ["add"]
    with pytest.raises(ValueError, match="has no tool 'sub'"):
        in_episode(Mcp(command=SERVER, only=["sub"]), work)


def test_a_server_that_dies_is_an_infrastructure_error_and_the_next_episode_has_a_new_one():
    kit = Mcp(command=SERVER)

    async def episode(work):
        async with kit.open(World(), seed=0) as tools:
            return await work({tool.name: tool for tool in tools})

    async def main():
        async def killed(tools):
            slow = asyncio.create_task(tools["sleep"].call(seconds=20))
            with pytest.raises(InfrastructureError, match="went while it ran 'die'"):
                await tools["die"].call()
            with pytest.raises(InfrastructureError):
                await slow
            with pytest.raises(InfrastructureError, match="has gone"):
                await tools["add"].call(a=1, b=1)

        async with asyncio.timeout(15):
            await episode(killed)
            assert await episode(lambda tools: tools["add"].call(a=2, b=2)) == "4"

    asyncio.run(main())


def test_a_call_that_is_given_up_leaves_the_connection_to_the_others():
    async def work(tools):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await tools["sleep"].call(seconds=1.0)
        assert await tools["add"].call(a=1, b=2) == "3"

    in_episode(Mcp(command=SERVER), work)


@pytest.mark.parametrize(
    ("command", "start_s", "told"),
    [
        (["/no/such/program"], 20.0, "does not answer"),
        ([sys.executable, "-c", "raise SystemExit(1)"], 20.0, "does not answer"),
        ([sys.executable, "-c", "import time; time.sleep(60)"], 1.0, "no tools within 1 s"),
    ],
)
def test_a_server_that_does_not_start_is_an_infrastructure_error(command, start_s, told):
    async def work(tools):
        return None

    with pytest.raises(InfrastructureError, match=told):
        in_episode(Mcp(command=command, start_s=start_s), work)


@pytest.mark.parametrize("options", [{}, {"command": ["a"], "url": "http://b"}])
def test_one_way_to_reach_it_is_needed(options):
    with pytest.raises(ValueError, match="either command or url"):
        Mcp(**options)
