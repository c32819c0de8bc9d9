"""Measures environment servers beside servers of the same messages that do nothing.

    OMP_NUM_THREADS=1 python benchmarks/environment_servers.py [--seconds 3] [--pairs 3]

Server and clients have a process each. `bare` answers each step with the same message; `ours` plays
a step of an episode: a workflow of one agent. An episode has 16 steps, and its reset is none.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from statistics import median
from typing import Any, Protocol

import grpc
import uvicorn
from fastapi import FastAPI, WebSocket
from starlette.websockets import WebSocketDisconnect
from websockets.asyncio.client import ClientConnection, connect

from rolecall.agents.agent import Agent, Policy
from rolecall.core.interfaces.environment import Observation, World
from rolecall.core.types import Task
from rolecall.environment_server.grpc_service import EnvironmentService, make_server
from rolecall.environment_server.hosted import HostedEnvironment
from rolecall.environment_server.openenv_app import make_app
from rolecall.environment_server.session import ActionEngine
from rolecall.environments.remote.messages import CLASSES, METHODS, SERVICE
from rolecall.models.cpu.product_trials import processor
from rolecall.rollout.episodes import RolloutContext
from rolecall.runtime.call_tree import task_factory
from rolecall.serve.guard import Rules
from rolecall.workflows.multi_turn import multi_turn

SESSIONS = (1, 64, 1000)
STEPS = 16  # of an episode
TEXT = "What do you do next?"


class Session(Protocol):
    """One session of a server."""

    async def reset(self) -> None: ...
    async def step(self) -> None: ...


class SameText(World):
    """A world in which every action is answered with the same text."""

    async def reset(self) -> Observation:
        return Observation(TEXT)

    async def step(self, agent: str, action: str) -> Observation:
        return Observation(TEXT)

    async def score(self, episode: Any) -> dict[str, float]:
        return {"team": 0.0}


class SameTextEnvironment:
    def tasks(self, split: str) -> Sequence[Task]:
        return [Task("task", "Act.")]

    def open(self, task: Task, *, seed: int) -> World:
        return SameText()


def make_environment() -> HostedEnvironment:
    agent = Agent("actor", Policy("actor", None, ActionEngine()), "actor")
    options = {"max_turns": STEPS}
    context = RolloutContext({"actor": agent}, multi_turn, options, SameTextEnvironment(), {})
    context.timeout_s = 3600.0
    return HostedEnvironment("same", context, kind="same")


class BareService:
    """Answers every request of gRPC with the same message."""

    def __init__(self) -> None:
        observation = {"messages": [{"role": "user", "content": TEXT}], "info": {"agent": "actor"}}
        self._reset = CLASSES["ResetResponse"](
            observation=observation, session_id="x", status="success"
        )
        self._step = CLASSES["StepResponse"](
            observation=observation, reward={"value": 0.0}, status="success"
        )

    def __getattr__(self, name: str) -> Callable[[Any], Awaitable[Any]]:
        async def answer(request: Any) -> Any:
            return self._reset if name == "Reset" else self._step

        return answer


def make_bare_app() -> FastAPI:
    app = FastAPI()

    async def play(socket: WebSocket) -> None:
        await socket.accept()
        observation = {"agent": "actor", "messages": [{"role": "user", "content": TEXT}]}
        answer = {"observation": observation, "reward": 0.0, "done": False}
        try:
            while True:
                await socket.receive_json()
                await socket.send_json({"type": "observation", "data": answer})
        except WebSocketDisconnect:
            return

    app.add_api_websocket_route("/ws", play)
    return app


async def serve(protocol: str, kind: str) -> None:
    """Serve until the process is killed; the port is printed first."""
    asyncio.get_running_loop().set_task_factory(task_factory)
    is_bare = kind == "bare"
    if protocol == "grpc":
        service = BareService() if is_bare else EnvironmentService([make_environment()])
        server, port = make_server(service, "127.0.0.1:0")
        await server.start()
        print(port, flush=True)
        await server.wait_for_termination()
    app = make_bare_app() if is_bare else make_app([make_environment()], Rules())
    config = uvicorn.Config(app, port=0, log_level="warning")
    web = uvicorn.Server(config)
    serving = asyncio.create_task(web.serve())
    while not web.started:
        await asyncio.sleep(0.01)
    print(web.servers[0].sockets[0].getsockname()[1], flush=True)
    await serving


async def open_grpc(port: int, number: int) -> list[Session]:
    """Return sessions that share a connection."""
    channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
    methods = {
        name: channel.unary_unary(
            f"/{SERVICE}/{name}",
            request_serializer=CLASSES[METHODS[name][0]].SerializeToString,
            response_deserializer=CLASSES[METHODS[name][1]].FromString,
        )
        for name in ("Reset", "Step")
    }
    return [GrpcSession(methods) for _ in range(number)]


class GrpcSession:
    """Plays episodes over gRPC."""

    def __init__(self, methods: dict[str, Any]) -> None:
        self.methods = methods
        self.step_request: Any = None

    async def reset(self) -> None:
        reset = await self.methods["Reset"](CLASSES["ResetRequest"](environment_id="same"))
        action = {"role": "assistant", "content": "Go on."}
        self.step_request = CLASSES["StepRequest"](session_id=reset.session_id, action=action)

    async def step(self) -> None:
        await self.methods["Step"](self.step_request)


async def open_openenv(port: int, number: int) -> list[Session]:
    """Return sessions with a socket each."""
    return [OpenEnvSession(await connect(f"ws://127.0.0.1:{port}/ws")) for _ in range(number)]


class OpenEnvSession:
    """Plays episodes over a WebSocket."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    async def reset(self) -> None:
        await self._send("reset", {})

    async def step(self) -> None:
        await self._send("step", {"message": "Go on."})

    async def _send(self, kind: str, data: dict[str, str]) -> None:
        await self.socket.send(json.dumps({"type": kind, "data": data}))
        assert json.loads(await self.socket.recv(decode=True))["type"] == "observation"


async def measure(protocol: str, port: int, number: int, seconds: float) -> float:
    """Return the steps per second of some sessions."""
    sessions = await (open_grpc if protocol == "grpc" else open_openenv)(port, number)
    for session in sessions:
        await session.reset()
    end, counts = time.perf_counter() + seconds, [0] * number

    async def go_on(index: int) -> None:
        while time.perf_counter() < end:
            await sessions[index].step()
            counts[index] += 1
            if counts[index] % STEPS == 0:
                await sessions[index].reset()

    start = time.perf_counter()
    await asyncio.gather(*map(go_on, range(number)))
    return sum(counts) / (time.perf_counter() - start)


def measure_server(protocol: str, kind: str, number: int, seconds: float) -> float:
    """Start a server, and return what `measure` says of it."""
    command = [sys.executable, __file__, "--serve", protocol, kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            return asyncio.run(measure(protocol, int(server.stdout.readline()), number, seconds))
        finally:
            server.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", nargs=2)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--pairs", type=int, default=3)
    options = parser.parse_args()
    if options.serve:
        asyncio.run(serve(*options.serve))
        return
    print(processor())
    print("| protocol | sessions | bare steps/s | ours | ratio, median of pairs |")
    print("|---|---|---|---|---|")
    for protocol in ("grpc", "openenv"):
        for number in SESSIONS:
            pairs = [
                [measure_server(protocol, one, number, options.seconds) for one in ("bare", "ours")]
                for _ in range(options.pairs)
            ]
            bare, ours = (median(pair[side] for pair in pairs) for side in (0, 1))
            ratio = median(pair[1] / pair[0] for pair in pairs)
            print(f"| {protocol} | {number} | {bare:.0f} | {ours:.0f} | {ratio:.2f} |", flush=True)


if __name__ == "__main__":
    main()
