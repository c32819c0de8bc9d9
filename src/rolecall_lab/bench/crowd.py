"""Plays scripted episodes at once, and measures turns per second and bytes per episode.

The crowd's engine holds every request until all live episodes have asked, then answers all: so
each of the three turns is asked for by all episodes at once.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from resource import getpagesize

from rolecall.core.types import Task
from rolecall.rollout.episodes import RolloutContext
from rolecall.rollout.group_player import collect
from rolecall.runtime import call_tree
from rolecall.runtime.call_tree import task_factory
from rolecall_lab.bench import Measure, Measured
from rolecall_lab.bench.conductor import CrowdSize

TURNS = 3
MakeContext = Callable[["Crowd"], RolloutContext]


class Crowd:
    """Unblocks its waiting episodes when all of them wait."""

    def __init__(self, live: int) -> None:
        self.live = live
        self.num_rounds = 0
        self.resident = 0  # bytes of this process, when the last round was full
        self._waiting: list[asyncio.Future[None]] = []

    async def all_here(self) -> None:
        mine: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(mine)
        if len(self._waiting) == self.live:
            self.num_rounds += 1
            self.resident = resident_bytes()
            waiting, self._waiting = self._waiting, []
            for one in waiting:
                one.set_result(None)
        with call_tree.waiting():
            await mine


@dataclass(frozen=True, slots=True)
class Played:
    turns_per_s: float
    bytes_an_episode: float


def play(make_context: MakeContext, episodes: int) -> Played:
    """Play this many episodes of TURNS turns at once."""
    tasks = [Task(f"task-{number}", f"What is {number} + {number}?") for number in range(episodes)]
    crowd = Crowd(episodes)
    context = make_context(crowd)
    gc.collect()
    before, started = resident_bytes(), time.perf_counter()
    turns = asyncio.run(_collect(context, tasks))
    took = time.perf_counter() - started
    assert (turns, crowd.num_rounds) == (episodes * TURNS, TURNS), "an episode failed"
    return Played(turns / took, (crowd.resident - before) / episodes)


async def _collect(context: RolloutContext, tasks: list[Task]) -> int:
    asyncio.get_running_loop().set_task_factory(task_factory)
    rollout = await collect(context, tasks, step=1, group_size=1)
    return sum(len(episode.turns) for episode in rollout.episodes)


def _context(size: CrowdSize) -> MakeContext:
    module, _, function = size.context.partition(":")
    make_context: MakeContext = getattr(import_module(module), function)
    return make_context


def set_up(size: CrowdSize, folder: Path) -> Measure:
    make_context = _context(size)
    return lambda run: Measured(play(make_context, size.episodes).turns_per_s)


def set_up_linearity(size: CrowdSize, folder: Path) -> Measure:
    make_context = _context(size)

    def measure(run: int) -> Measured:
        few = play(make_context, size.episodes // 4).turns_per_s
        return Measured(play(make_context, size.episodes).turns_per_s / few)

    return measure


def set_up_memory(size: CrowdSize, folder: Path) -> Measure:
    """Measure memory in a fresh process each time.

    A process that has freed memory grows less.
    """
    make_context = _context(size)

    def measure(run: int) -> Measured:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as fresh:
            fresh.submit(play, make_context, 1).result()  # what is loaded once belongs to nobody
            played = fresh.submit(play, make_context, size.episodes).result()
        return Measured(played.bytes_an_episode)

    return measure


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * getpagesize()
