"""A small MCP server for the tests, on stdin and stdout."""

import os
import time

from mcp.server import MCPServer

server = MCPServer("toy")


@server.tool()
def add(a: int, b: int) -> str:
    """The sum of two numbers."""
    return str(a + b)


@server.tool()
def fail() -> str:
    """Raises."""
    raise ValueError("not today")


@server.tool()
def die() -> str:
    """Ends the server."""
    os._exit(3)


@server.tool()
def sleep(seconds: float) -> str:
    """Waits."""
    time.sleep(seconds)
    return "awake"


@server.tool()
def say(length: int) -> str:
    """The letter a, so many times."""
    return "a" * length


@server.tool()
def parts(number: int) -> list[str]:
    """So many parts."""
    return ["part"] * number


if __name__ == "__main__":
    server.run()
