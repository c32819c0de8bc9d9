"""Clients of gateway_soak.py, good and bad ones, in a process of their own.

    python benchmarks/soak_clients.py GRPC_ADDRESS OPENENV_URL

Prints the port at which it takes tasks of episodes as a program of `workflow.url` does. Plays
sessions of the two environment servers until `/end` is posted. `/counts` returns what was answered.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from typing import Any

import grpc
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from soak_programs import COUNTS, PROGRAMS, RUNNING, SURPRISES, Rollout, count, finish_twice, keep
from websockets.asyncio.client import connect

from rolecall.environments.remote.messages import CLASSES, METHODS, SERVICE

SESSIONS_PER_S = 2.0


async def take_task(request: Request) -> Response:
    task = await request.json()
    name = task["id"].partition(":")[0]
    address = task["base_url"].partition("/rollouts/")[0]
    rollout = Rollout(name, address, task["api_key"], task["finish_url"])
    if name == "finish_twice":
        keep(finish_twice(rollout))
        return Response(status_code=202)
    await PROGRAMS[name](rollout)
    return JSONResponse({"answer": "4", "reward": 1.0})


class GrpcClient:
    """Plays sessions of a server of MRLM's protocol."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.channel = grpc.aio.insecure_channel(address)

    def call(self, name: str, **fields: Any) -> Any:
        request, response = METHODS[name]
        method = self.channel.unary_unary(
            f"/{SERVICE}/{name}",
            request_serializer=CLASSES[request].SerializeToString,
            response_deserializer=CLASSES[response].FromString,
        )
        return method(CLASSES[request](**fields), timeout=30)

    async def reset(self, environment: str = "debate", *expected: object) -> Any:
        calling = self.call("Reset", environment_id=environment)
        return await count("grpc reset", calling, *expected)

    async def step(self, session: str, *expected: object, **metadata: str) -> Any:
        action = {"role": "assistant", "content": "<winner>a</winner>", "metadata": metadata}
        calling = self.call("Step", session_id=session, action=action)
        return await count("grpc step", calling, *expected)

    async def play(self) -> None:
        answer = await self.reset()
        session = answer.session_id
        while not answer.observation.done:
            answer = await self.step(session, agent=answer.observation.info["agent"])

    async def abandon(self) -> None:
        """Leave after the first step, and in the middle of a reset."""
        await self.step((await self.reset()).session_id)
        leaving = self.call("Reset", environment_id="debate")
        await asyncio.sleep(0.005)
        leaving.cancel()
        COUNTS["grpc reset cancelled"] += 1

    async def err(self) -> None:
        await self.reset("nothing", "NOT_FOUND")
        await self.step("nobody", "NOT_FOUND")
        session = (await self.reset()).session_id
        await self.step(session, "FAILED_PRECONDITION", agent="nobody")
        await self.step(session, "FAILED_PRECONDITION", step="7")
        await self.step(session, "INVALID_ARGUMENT", step="x")


class SocketClient:
    """Plays sessions of a server of OpenEnv's protocol."""

    def __init__(self, url: str) -> None:
        self.url = url.replace("http", "ws") + "/debate/ws"

    async def send(self, socket: Any, kind: str, **data: Any) -> Any:
        async def ask() -> Any:
            await socket.send(json.dumps({"type": kind, "data": data}))
            return json.loads(await socket.recv(decode=True))

        return await count(f"openenv {kind}", ask())

    async def play(self) -> None:
        async with connect(self.url) as opened:
            answer = await self.send(opened, "reset")
            while not answer["data"]["done"]:
                agent = answer["data"]["observation"]["agent"]
                answer = await self.send(opened, "step", message="<winner>a</winner>", agent=agent)

    async def abandon(self) -> None:
        async with connect(self.url) as opened:
            await self.send(opened, "reset")
            await opened.send(json.dumps({"type": "step", "data": {"message": "x"}}))
            opened.transport.abort()

    async def err(self) -> None:
        async with connect(self.url) as opened:
            wrong = ["{", "[" * 100_000, b"\xff", '{"type": []}', '{"type": "step"}']
            for message in (*wrong, '{"type": "reset", "data": {"index": -1}}'):
                await opened.send(message)
                answer = await count("openenv wrong", opened.recv(decode=True))
                if json.loads(answer)["type"] != "error":
                    SURPRISES[f"openenv {message[:40]!r}"] = answer
            await self.send(opened, "reset")
            await self.send(opened, "step", message="x", agent="nobody")


async def play_sessions(clients: list[Any]) -> None:
    """Begin sessions at a steady rate."""
    while True:
        for client in clients:
            for program in (client.play, client.abandon, client.err):
                keep(program())
                await asyncio.sleep(1 / SESSIONS_PER_S)


async def main() -> None:
    clients = [GrpcClient(sys.argv[1]), SocketClient(sys.argv[2])]
    playing = asyncio.create_task(play_sessions(clients))
    app = FastAPI()

    async def report(request: Request) -> Response:
        return JSONResponse({"counts": COUNTS, "surprises": SURPRISES})

    async def end(request: Request) -> Response:
        playing.cancel()
        if RUNNING:
            await asyncio.wait(RUNNING, timeout=30)
        return JSONResponse({"running": len(RUNNING)})

    app.add_route("/run", take_task, methods=["POST"])
    app.add_route("/end", end, methods=["POST"])
    app.add_route("/counts", report)
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    await server.serve([listener])


if __name__ == "__main__":
    asyncio.run(main())
