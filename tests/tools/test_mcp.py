"""Tools of a real MCP server, and a server that fails in every way it can."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from contextlib import AsyncExitStack
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.evidence import leave_to_evidence

if find_spec("mcp") is None:  # slow to import
    pytest.skip("the extra rolecall[mcp] is not installed", allow_module_level=True)

from rolecall.core.errors import InfrastructureError
from rolecall.core.interfaces.environment import World
from rolecall.core.interfaces.tool import Tool, ToolError
from rolecall.tools.mcp import Mcp

pytestmark = pytest.mark.slow

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
        assert sorted(tools) == ["add", "die", "fail", "parts", "say", "sleep"]
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


@pytest.mark.parametrize("wrong", [{"a": "\ud800"}, {"a\udead": 1}, {"a": float("nan")}])
def test_what_cannot_be_sent_is_told_and_the_connection_stays_with_the_others(wrong):
    async def work(tools):
        with pytest.raises(ToolError, match="cannot be sent"):
            await tools["add"].call(**wrong)
        assert await tools["add"].call(a=1, b=2) == "3"

    in_episode(Mcp(command=SERVER), work)


def test_a_result_is_bounded():
    async def work(tools):
        assert len(await tools["say"].call(length=100_000)) == 100_000
        said = await tools["say"].call(length=1_500_000)
        assert "500000 characters left out" in said
        assert (await tools["parts"].call(number=1_200)).endswith("part\n[200 parts left out]")
        with pytest.raises(InfrastructureError, match="went while it ran 'say'"):
            await tools["say"].call(length=9_000_000)

    in_episode(Mcp(command=SERVER), work)


def test_an_answer_over_http_is_given_up_before_it_fills_the_memory():
    """A server that answers the first request with spaces for as long as anyone reads them."""
    sent = 0

    async def answer(reader, writer):
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        kind, size = b"content-type: application/json\r\n", b"content-length: %d\r\n" % (1 << 32)
        writer.write(b"HTTP/1.1 200 OK\r\n" + kind + size + b"\r\n")
        try:
            while sent < 256 << 20:
                writer.write(b" " * (1 << 20))
                await writer.drain()
                sent += 1 << 20
        except OSError:
            pass
        finally:
            writer.close()

    async def main():
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        kit = Mcp(url=f"http://127.0.0.1:{port}/mcp", start_s=20.0)
        async with server:
            with pytest.raises(InfrastructureError):
                async with kit.open(World(), seed=0):
                    pass

    asyncio.run(main())
    assert 0 < sent < 64 << 20


@pytest.mark.parametrize("stream", leave_to_evidence(["io.StringIO()", "None"], keep=["None"]))
def test_a_server_starts_where_stderr_is_no_file(stream):
    """As in a notebook, whose stderr is an object that draws, from before anything is imported."""
    code = f"""
import asyncio, io, sys
sys.stderr = {stream}
from rolecall.core.interfaces.environment import World
from rolecall.tools.mcp import Mcp

async def main():
    async with Mcp(command={SERVER}).open(World(), seed=0) as tools:
        print(await next(tool for tool in tools if tool.name == "add").call(a=1, b=2))

asyncio.run(main())
"""
    said = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert said.stdout == "3\n"


def test_a_server_and_what_it_started_end_with_the_connection(tmp_path):
    """One that ignores the end of its input, and has a child of its own."""
    told = tmp_path / "pids"
    code = (
        "import os, signal, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "child = os.fork()\n"
        f"if child: open({str(told)!r}, 'w').write(f'{{os.getpid()}} {{child}}')\n"
        "time.sleep(300)"
    )
    with pytest.raises(InfrastructureError, match="no tools within"):
        in_episode(Mcp(command=[sys.executable, "-c", code], start_s=3.0), lambda tools: tools)
    for pid in map(int, told.read_text().split()):
        while Path(f"/proc/{pid}/stat").exists():
            if Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z":
                break
            time.sleep(0.01)


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
