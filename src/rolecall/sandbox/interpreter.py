"""Keeps one Python in a sandbox, whose variables and files last from call to call.

One that dies, of a limit or by its own doing, is reported with that call; the next call begins a
new one, with the files and without the variables.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, replace

from rolecall.sandbox.base import Limits, Ran, Run, can_be_placed
from rolecall.sandbox.box import Box
from rolecall.sandbox.bubblewrap import Boxes, Bubblewrap
from rolecall.sandbox.cells import SCRIPT, Cell, read_cell

CPU_S = 100_000  # of the whole session: each call has a wall time
END_S = 5.0  # for a Python that has ended, or said what is no answer


@dataclass(frozen=True, slots=True)
class Played:
    """Holds what a call came to: its cell, or how the Python ended in it."""

    cell: Cell | None
    ended: Ran | None = None  # None: it goes on


class Interpreter:
    """A Python of one agent in one episode. Its random numbers begin with `seed`."""

    def __init__(self, sandbox: Bubblewrap, limits: Limits, *, seed: int) -> None:
        self._sandbox, self._limits, self._seed = sandbox, limits, seed
        self._lock = asyncio.Lock()  # calls of one answer take turns, in their order
        self._boxes: Boxes | None = None
        self._box: Box | None = None
        self._files: dict[str, bytes] = {}  # of one that died, for the next

    async def run(self, code: str) -> Played:
        """Run a call. Raises SandboxError where no sandbox can be had."""
        async with self._lock:
            if self._boxes is None:
                self._boxes = self._sandbox.hold()
            return await self._sandbox.in_thread(lambda: self._play(code))

    async def close(self) -> None:
        """End the Python, also in the middle of a call."""
        if self._boxes is not None:
            await self._sandbox.release(self._boxes)

    def _play(self, code: str) -> Played:
        if self._box is None:
            self._box = self._begin()
        deadline = time.monotonic() + self._limits.wall_s
        cell = self._ask(self._box, code, deadline)
        if cell is not None:
            return Played(cell)
        box, self._box = self._box, None
        is_late = time.monotonic() >= deadline
        ended = box.finish(stop=is_late, within_s=END_S)
        self._files = {path: held for path, held in ended.files.items() if can_be_placed(path)}
        return Played(None, replace(ended, wall_s=self._limits.wall_s) if is_late else ended)

    def _begin(self) -> Box:
        assert self._boxes is not None
        limits = replace(self._limits, cpu_s=CPU_S)
        run = Run(code=SCRIPT, files=self._files, fetch=("**",), limits=limits)
        box = self._boxes.open(run, talks=True)
        box.say(json.dumps({"output_bytes": limits.output_bytes}).encode())
        self._ask(box, f"import random; random.seed({self._seed})", time.monotonic() + END_S)
        self._ask(box, "del random", time.monotonic() + END_S)
        return box

    def _ask(self, box: Box, code: str, deadline: float) -> Cell | None:
        box.say(json.dumps(code).encode())
        reply = box.hear(deadline)
        return None if reply is None else read_cell(reply)
