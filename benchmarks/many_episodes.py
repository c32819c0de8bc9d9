"""Plays scripted episodes that are all live at once, in workers of Ray or in one process.

    python benchmarks/many_episodes.py --episodes 10000 --workers 16
    python benchmarks/many_episodes.py --episodes 10000 --workers 0

Prints turns a second, the share of a core and the memory that the trainer's process takes, what it
takes to write the episodes down, and what Ray's object store holds at most.
"""

from __future__ import annotations

import argparse
import asyncio
import threading
import time
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from rolecall.cluster.replicas import ReplicatedEngine
from rolecall.cluster.session import RaySession
from rolecall.cluster.worker import SharedEngine
from rolecall.cluster.workers import Workers
from rolecall.config.cluster import RayClusterConfig
from rolecall.core.interfaces.engine import Completion, Engine, Request
from rolecall.core.interfaces.publisher import FileEngine
from rolecall.core.types import Floats, Ids, Task
from rolecall.rewards.correct import correct
from rolecall.rollout.episodes import Rollout, RolloutContext
from rolecall.rollout.group_player import Collection
from rolecall.runtime.call_tree import task_factory
from rolecall.storage.episode_io import write_parquet
from rolecall.storage.journal import Journal
from rolecall_lab.bench.conductor_ids import PROMPT, SAID, Tellers, three_turns
from rolecall_lab.bench.crowd import TURNS, Crowd, resident_bytes

GB = 1e9


class Held(FileEngine):
    """Holds each request until so many have come, then answers all with the same tokens."""

    def __init__(self, live: int) -> None:
        self.crowd = Crowd(live)

    async def generate(self, request: Request) -> list[Completion]:
        await self.crowd.all_here()
        tokens = np.arange(SAID, dtype=np.int32)
        versions = np.zeros(SAID, dtype=np.int32)
        return [Completion(tokens, np.zeros(SAID, dtype=np.float32), versions, "length")]

    async def cancel(self, request_id: str) -> None:
        return None

    async def score(self, policy: str, prompt: Ids, tokens: Ids, *, temperature: float) -> Floats:
        return np.zeros(len(tokens), dtype=np.float32)

    async def load_files(self, policy: str, version: int, folder: Path) -> None:
        return None


async def made(live: int) -> Held:
    return Held(live)


def context_of(engine: Engine, live: int) -> RolloutContext:
    return RolloutContext(
        agents={},
        workflow=three_turns,
        options={"engine": engine},
        environment=Tellers(),
        rewards={"correct": (correct, 1.0)},
        concurrency=live,
        timeout_s=3600.0,
    )


async def hosted(number: int, live: int) -> tuple[RolloutContext, list[SharedEngine]]:
    shared = SharedEngine(number)
    return context_of(shared, live), [shared]


class Store(threading.Thread):
    """Looks how much Ray's object stores hold."""

    def __init__(self, session: RaySession) -> None:
        super().__init__(daemon=True)
        self.session, self.most, self.over = session, 0.0, threading.Event()

    def run(self) -> None:
        ray = self.session.ray
        whole = ray.cluster_resources()["object_store_memory"]
        while not self.over.wait(0.5):
            free = ray.available_resources().get("object_store_memory", whole)
            self.most = max(self.most, whole - free)


async def played(episodes: int, workers: int, folder: Path) -> None:
    asyncio.get_running_loop().set_task_factory(task_factory)
    tasks = [Task(f"task-{number}", f"What is {number} + {number}?") for number in range(episodes)]
    async with AsyncExitStack() as stack:
        context, store = context_of(Held(episodes), episodes), None
        if workers:
            session = RaySession(RayClusterConfig(name="ray", address="local", heartbeat_s=60.0))
            stack.callback(session.close)
            engine = ReplicatedEngine(
                session, partial(made, episodes), ["policy"], seats=[None], can=()
            )
            stack.push_async_callback(engine.close)
            makes = [partial(hosted, number, episodes) for number in range(workers)]
            context.player = Workers(session, makes, engines=[engine])
            stack.push_async_callback(context.player.close)
            await engine.start()
            await context.player.start()
            store = Store(session)
            store.start()
        journal = Journal(folder / "step-000001.jsonl")
        before, cpu, started = resident_bytes(), time.process_time(), time.monotonic()
        collection = Collection(context, tasks, step=1, group_size=1, journal=journal)
        await collection.wait()
        rollout = collection.take()
        took, busy = time.monotonic() - started, time.process_time() - cpu
        told(rollout, took=took, busy=busy, grown=resident_bytes() - before)
        if store is not None:
            store.over.set()
            print(f"object store at most {store.most / GB:.3f} GB")
        started = time.monotonic()
        write_parquet(folder / "step.parquet", rollout.episodes, step=1)
        print(f"parquet written in {time.monotonic() - started:.1f} s")
        started = time.monotonic()
        assert len(journal.read()) == episodes
        print(f"journal read in {time.monotonic() - started:.1f} s")


def told(rollout: Rollout, *, took: float, busy: float, grown: int) -> None:
    turns = sum(len(episode.turns) for episode in rollout.episodes)
    number = len(rollout.episodes)
    assert turns == TURNS * number, "an episode failed"
    print(f"{number} episodes of {TURNS} turns ({PROMPT} tokens, {SAID} said) in {took:.1f} s")
    print(
        f"{turns / took:.0f} turns/s; the trainer's process: {busy / took:.2f} of a core, "
        f"{busy / turns * 1e6:.0f} us a turn, grown by {grown / number / 1e3:.1f} kB an episode"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--episodes", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=16, help="0: the trainer's process plays")
    given = parser.parse_args()
    with TemporaryDirectory() as folder:
        asyncio.run(played(given.episodes, given.workers, Path(folder)))


if __name__ == "__main__":
    main()
