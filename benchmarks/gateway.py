"""Measures how many requests of foreign programs a gateway answers, beside a scripted engine.

    python benchmarks/gateway.py --sessions 64 --turns 16
    python benchmarks/gateway.py --sessions 1000 --turns 4

Each session is a conversation of an episode of its own, which sends its whole history and eight
tools with each request. A process of its own asks, over one connection a session. Prints requests a
second, how long one takes, answers that were no success, and how many turns began with the tokens
of the one before.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import resource
import time
from contextlib import AsyncExitStack
from multiprocessing.connection import Connection

import numpy as np

from rolecall.agents.agent import Agent, Policy
from rolecall.agents.team import Team
from rolecall.core.interfaces.engine import Sampling
from rolecall.core.types import Episode, Task, Turn
from rolecall.engines.scripted import ScriptedEngine
from rolecall.gateway.server import Gateway
from rolecall.gateway.session import SessionLimits
from rolecall.models.loading import load_tokenizer
from rolecall.runtime import call_tree

SAID = "Two and two make four. So the answer is four, as far as I can see."
QUESTION = "What is two and two? Think about it once more, and write what you found. " * 3
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": f"look_up_{number}",
            "description": "Looks a word up, and returns what is known of it.",
            "parameters": {
                "type": "object",
                "properties": {"word": {"type": "string", "description": "The word."}},
                "required": ["word"],
            },
        },
    }
    for number in range(8)
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=64)
    parser.add_argument("--turns", type=int, default=16, help="of each session")
    parser.add_argument(
        "--model", default="tiny:math", help="whose tokenizer and template are used"
    )
    options = parser.parse_args()
    report = asyncio.run(measure(options.sessions, options.turns, options.model))
    print(json.dumps(report, indent=1))


async def measure(num_sessions: int, num_turns: int, model: str) -> dict[str, float]:
    """Return the figures of one run."""
    asyncio.get_running_loop().set_task_factory(call_tree.task_factory)
    tokenizer = load_tokenizer(model)
    policy = Policy("p", tokenizer, ScriptedEngine(tokenizer, lambda request: SAID))
    agent = Agent("solver", policy, "solver", sampling=Sampling(max_tokens=64))
    gateway, episodes = Gateway(), []
    async with AsyncExitStack() as stack:
        keys = []
        for number in range(num_sessions):
            episode = Episode(f"0:{number}:0", Task(str(number), QUESTION), 0, number)
            team = Team({"solver": agent}, episode=episode, call_seed=number)
            with call_tree.enter_scope((), barrier=call_tree.IdleBarrier()):
                limits = SessionLimits(turns=num_turns)
                session = await stack.enter_async_context(gateway.open(team, limits=limits))
            keys.append(session.key)
            episodes.append(episode)
        here, there = multiprocessing.get_context("spawn").Pipe()
        port = int(gateway.address.rpartition(":")[2])
        asking = multiprocessing.get_context("spawn").Process(
            target=ask_all, args=(there, port, keys, num_turns)
        )
        asking.start()
        report: dict[str, float] = await asyncio.to_thread(here.recv)
        asking.join()
    await gateway.close()
    exact = sum(
        continues(later, earlier)
        for episode in episodes
        for earlier, later in zip(episode.turns, episode.turns[1:], strict=False)
    )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return report | {"exact": exact, "expected": num_sessions * (num_turns - 1), "peak_mb": peak}


def continues(later: Turn, earlier: Turn) -> bool:
    said = np.concatenate(earlier.ids)
    return bool(np.array_equal(later.ids[0][: len(said)], said))


def ask_all(results: Connection, port: int, keys: list[str], num_turns: int) -> None:
    """Hold all conversations at once, in a process of their own."""
    results.send(asyncio.run(ask_them(port, keys, num_turns)))


async def ask_them(port: int, keys: list[str], num_turns: int) -> dict[str, float]:
    seconds: list[float] = []
    statuses: list[int] = []

    async def talk(key: str) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        messages = [{"role": "user", "content": QUESTION}]
        for _ in range(num_turns):
            body = json.dumps({"model": "solver", "messages": messages, "tools": TOOLS}).encode()
            head = (
                f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n"
                f"Authorization: Bearer {key}\r\nContent-Type: application/json\r\n"
                f"Content-Length: {len(body)}\r\n\r\n"
            )
            began = time.perf_counter()
            writer.write(head.encode() + body)
            answer = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            size = int(answer.partition("content-length:")[2].split()[0])
            content = await reader.readexactly(size)
            seconds.append(time.perf_counter() - began)
            statuses.append(int(answer.split()[1]))
            if statuses[-1] == 200:
                said = json.loads(content)["choices"][0]["message"]["content"]
                messages.append({"role": "assistant", "content": said})
            messages.append({"role": "user", "content": QUESTION})
        writer.close()

    began = time.perf_counter()
    await asyncio.gather(*map(talk, keys))
    return {
        "requests_per_s": len(seconds) / (time.perf_counter() - began),
        "p50_ms": float(np.percentile(seconds, 50)) * 1e3,
        "p99_ms": float(np.percentile(seconds, 99)) * 1e3,
        "requests": len(seconds),
        "failed": sum(status != 200 for status in statuses),
    }


if __name__ == "__main__":
    main()
