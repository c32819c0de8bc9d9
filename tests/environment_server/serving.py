"""Servers of recipes in the test's own event loop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import uvicorn

from rolecall.environment_server.grpc_service import EnvironmentService, make_server
from rolecall.environment_server.hosted import HostedEnvironment
from rolecall.environment_server.openenv_app import make_app
from rolecall.runs.serve_environments import open_environment
from rolecall.runtime.call_tree import task_factory
from rolecall.serve.guard import Rules


def run(test: Callable[[], Awaitable[Any]]) -> Any:
    """Run a test in an event loop as episodes have it."""

    async def main():
        asyncio.get_running_loop().set_task_factory(task_factory)
        async with asyncio.timeout(120):
            return await test()

    return asyncio.run(main())


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@asynccontextmanager
async def serve_grpc(*names: str, port: int = 0, **options: Any) -> AsyncIterator[str]:
    """The address of a server of these recipes."""
    async with serve_service(*map(open_environment, names), port=port, **options) as address:
        yield address


@asynccontextmanager
async def serve_service(
    *environments: HostedEnvironment, port: int = 0, **options: Any
) -> AsyncIterator[str]:
    """The address of a gRPC server of these environments."""
    service = EnvironmentService(environments)
    server, port = make_server(service, f"127.0.0.1:{port}", **options)
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)
        await service.close()


@asynccontextmanager
async def serve_openenv(*names: str, port: int = 0, token: str = "") -> AsyncIterator[str]:
    """The address of a server of these recipes, without a path."""
    app = make_app([open_environment(name) for name in names], Rules(token=token))
    port = port or free_port()
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="warning"))
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = server.force_exit = True
        await serving
