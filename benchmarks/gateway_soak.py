"""Looks for leaks of the gateway, the environment servers and the warm workers under mixed clients.

    python benchmarks/gateway_soak.py --minutes 60 --output soak.json

Episodes are played at a steady rate, beside a scripted engine. Good and bad clients ask from a
process of their own (soak_clients.py); functions of a warm worker answer, fail, exit and hang.
Prints what this process holds every 30 s, and at the end, when all is closed, what remains.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI
from gateway import QUESTION, SAID
from soak_measures import fit_slope, measure_process

from rolecall.agents.agent import Agent, Policy
from rolecall.core.interfaces.engine import Completion, Request, Sampling
from rolecall.core.types import Task
from rolecall.engines.scripted import ScriptedEngine
from rolecall.environment_server.grpc_service import EnvironmentService, make_server
from rolecall.environment_server.openenv_app import OpenEnvApp
from rolecall.environments.external import ExternalEnvironment
from rolecall.models.loading import load_tokenizer
from rolecall.rewards.correct import correct
from rolecall.rollout.episodes import RolloutContext, play
from rolecall.runs.serve_environments import open_environment
from rolecall.runtime import call_tree
from rolecall.serve.binding import settings
from rolecall.serve.guard import Guard, Rules
from rolecall.workflows.external import close_host, external, hosts

EPISODES_PER_S = 8.0
ROW_S = 30.0
SESSION_S = 20.0  # that a session of an environment may take
EPISODE_S = 5.0
CALL = '<tool_call>{"name": "look_up_0", "arguments": {"word": "two"}}</tool_call>'
PROGRAMS = (
    "chat", "stream", "tools", "responses", "messages", "google", "retry", "edit", "refuse",
    "crowd", "vanish", "end_early", "finish_twice", "hang",
)  # fmt: skip
FUNCTION = """
import json
import os
import time
import urllib.request


def run(task):
    body = {"model": "solver", "messages": [{"role": "user", "content": task["prompt"]}]}
    key = os.environ["OPENAI_API_KEY"]
    headers = {"Content-Type": "application/json", "Authorization": "Bearer " + key}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    urllib.request.urlopen(request).close()
    name = task["id"].partition(":")[0]
    if name == "raise":
        raise ValueError(name)
    if name == "exit":
        os._exit(3)
    if name == "sleep":
        os.fork()
        time.sleep(600)
    return {"answer": "4", "reward": 1.0}
"""
FUNCTION_ENDS = ("return", "raise", "exit", "sleep")


class SoakEngine(ScriptedEngine):
    """Takes time for prompts with the word SLOW, and calls two tools for those with CALL BOTH."""

    async def generate(self, request: Request) -> list[Completion]:
        if "SLOW" in self.tokenizer.decode(request.prompt):
            await asyncio.sleep(0.5)
        return await super().generate(request)


def make_agent(model: str) -> Agent:
    tokenizer = load_tokenizer(model)

    def reply(request: Request) -> str:
        prompt = tokenizer.decode(request.prompt)
        return f"{CALL}\n{CALL}" if "CALL BOTH" in prompt and "RESULT" not in prompt else SAID

    policy = Policy("p", tokenizer, SoakEngine(tokenizer, reply))
    return Agent("solver", policy, "solver", sampling=Sampling(max_tokens=256))


class Driver:
    """Begins episodes at a steady rate."""

    def __init__(self, programs: RolloutContext, functions: RolloutContext) -> None:
        self.programs, self.functions = programs, functions
        self.ends: Counter[str] = Counter()  # of episodes, by program and kind of error
        self.under_way: set[asyncio.Task[None]] = set()

    async def run(self, seconds: float) -> None:
        """Begin episodes for some time, each eighth one as a function, and wait for all."""
        started, number = time.monotonic(), 0
        while time.monotonic() < started + seconds:
            number += 1
            context, names = self.programs, PROGRAMS
            if number % 8 == 0:
                context, names = self.functions, FUNCTION_ENDS
            name = names[number // 8 % len(names) if number % 8 == 0 else number % len(names)]
            episode = asyncio.create_task(self._play(context, name, number))
            self.under_way.add(episode)
            episode.add_done_callback(self.under_way.discard)
            await asyncio.sleep(1 / EPISODES_PER_S)
        await asyncio.gather(*self.under_way)

    async def _play(self, context: RolloutContext, name: str, number: int) -> None:
        episode = await play(context, Task(f"{name}:{number}", QUESTION))
        self.ends[f"{name} {(episode.error or 'ended').partition(':')[0]}"] += 1


@dataclass(slots=True)
class Servers:
    """The environment servers of this process."""

    grpc: EnvironmentService
    openenv: OpenEnvApp
    grpc_address: str
    openenv_url: str


@asynccontextmanager
async def serve_environments() -> AsyncIterator[Servers]:
    """Serve the recipe `debate` in both protocols."""
    hosted = open_environment("debate")
    hosted.context = replace(hosted.context, timeout_s=SESSION_S)
    service, app, routes = EnvironmentService([hosted]), FastAPI(), OpenEnvApp([hosted])
    server, port = make_server(service, "127.0.0.1:0")
    await server.start()
    app.add_middleware(Guard, Rules())
    routes.add_routes(app)
    web = uvicorn.Server(settings(app, log_level="warning"))
    listener = socket.create_server(("127.0.0.1", 0))
    serving = asyncio.create_task(web.serve([listener]))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        yield Servers(service, routes, f"127.0.0.1:{port}", url)
    finally:
        await server.stop(None)
        await service.close()
        web.should_exit = True
        await serving
        await hosted.context.close()


def count_statuses(counts: dict[str, int]) -> Counter[str]:
    statuses: Counter[str] = Counter()
    for name, number in counts.items():
        statuses[name.rpartition(" ")[2]] += number
    return statuses


async def watch(
    servers: Servers, clients: httpx.AsyncClient, driver: Driver, rows: list[dict[str, Any]]
) -> None:
    """Add a row every 30 s, and print it."""
    started = time.monotonic()
    while True:
        await asyncio.sleep(ROW_S - (time.monotonic() - started) % ROW_S)
        counts = (await clients.get("/counts")).json()["counts"]
        row = {"seconds": time.monotonic() - started} | measure_process()
        row |= {
            "rollouts": len(hosts.get().gateway._sessions),
            "grpc": len(servers.grpc._open),
            "openenv": servers.openenv._num_sessions,
            "episodes": sum(driver.ends.values()),
            "requests": sum(counts.values()),
            "errors": sum(number for name, number in counts.items() if " 200" not in name),
        }
        if not rows:
            print("".join(f"{name:>10}" for name in row))
        print(
            "".join(f"{value:>10.{int(name == 'rss_mb')}f}" for name, value in row.items()),
            flush=True,
        )
        rows.append(row | {"statuses": count_statuses(counts)})


async def soak(minutes: float, model: str) -> dict[str, Any]:
    """Return the rows of one run, all counts, and what remains at the end."""
    asyncio.get_running_loop().set_task_factory(call_tree.task_factory)
    async with serve_environments():  # libraries start what they keep
        pass
    start, rows = measure_process(), list[dict[str, Any]]()
    with tempfile.TemporaryDirectory() as folder:
        function = Path(folder) / "soak_function.py"
        function.write_text(FUNCTION)
        async with serve_environments() as servers:
            with start_clients(servers) as clients_url:
                contexts = [
                    RolloutContext(
                        {"solver": make_agent(model)}, external, options | {"max_turns": 20},
                        ExternalEnvironment("none.jsonl", "none.jsonl"),
                        rewards={"correct": (correct, 1.0)}, timeout_s=EPISODE_S,
                    )
                    for options in ({"url": f"{clients_url}/run"}, {"function": f"{function}:run"})
                ]  # fmt: skip
                driver = Driver(*contexts)
                async with httpx.AsyncClient(base_url=clients_url, timeout=60) as clients:
                    watching = asyncio.create_task(watch(servers, clients, driver, rows))
                    await driver.run(minutes * 60)
                    watching.cancel()
                    running = (await clients.post("/end")).json()["running"]
                    report = (await clients.get("/counts")).json()
                await asyncio.sleep(SESSION_S + 2)
                remaining = {
                    "clients": running,
                    "rollouts": len(hosts.get().gateway._sessions),
                    "grpc": len(servers.grpc._open),
                    "openenv": servers.openenv._num_sessions,
                }
        await close_host()
    await asyncio.sleep(1)
    end = measure_process()
    remaining |= {name: end[name] - start[name] for name in ("sockets", "tcp", "children", "tasks")}
    return report | {
        "ends": driver.ends, "rows": rows, "start": start, "end": end,
        "remaining": remaining, "slope": fit_slope(rows),
    }  # fmt: skip


@contextmanager
def start_clients(servers: Servers) -> Iterator[str]:
    """Start the process of the clients; yields its address."""
    script = Path(__file__).with_name("soak_clients.py")
    command = [sys.executable, script, servers.grpc_address, servers.openenv_url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.terminate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    report = asyncio.run(soak(options.minutes, "tiny:math"))
    options.output.write_text(json.dumps(report, indent=1))
    for name in ("counts", "ends", "surprises", "remaining", "slope"):
        print(name, json.dumps(report[name], indent=1, sort_keys=True))
    if report["surprises"] or any(report["remaining"].values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
