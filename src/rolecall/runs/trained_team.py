"""A trained team that answers from Python: `await Team.load("runs/math").ask("What is 3 + 4?")`."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from rolecall.agents.team import Team as BoundTeam
from rolecall.core.async_types import Work
from rolecall.core.interfaces.environment import Environment, World
from rolecall.core.json_types import Record
from rolecall.core.types import Episode, Task
from rolecall.rollout.episodes import PlaySettings, RolloutContext, play
from rolecall.runtime.call_tree import task_factory
from rolecall.setup.build import build
from rolecall.setup.plan import load_plan
from rolecall.storage import checkpoint
from rolecall.storage.run_folder import RunFolder
from rolecall.training import train_step
from rolecall.training.run import Run

Result = TypeVar("Result")


class Unscored:
    """An environment whose worlds score nothing: there is no reference answer to a question."""

    def __init__(self, inner: Environment) -> None:
        self.inner = inner

    def tasks(self, split: str) -> list[Task]:
        return []

    def open(self, task: Task, *, seed: int) -> World:
        world = self.inner.open(task, seed=seed)
        world.score = _no_score  # type: ignore[method-assign]
        return world


async def _no_score(episode: Episode) -> dict[str, float]:
    return {}


class TrainedTeam:
    """The agents of a run with the weights of a checkpoint; close it, or use it in a `with` or
    an `async with`.

    It lives on a thread with an event loop of its own, so it can be asked from any loop, and from
    several tasks at once: their requests share batches.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.context: RolloutContext = replace(
            run.context, environment=Unscored(run.context.environment), rewards={}
        )
        self._asked = 0
        self._loop = asyncio.new_event_loop()
        self._loop.set_task_factory(task_factory)
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True, name="team")
        self._thread.start()
        self._wait(train_step.publish(run, list(run.learners)))

    async def ask(self, question: str, **info: Any) -> Episode:
        """Let the team work on a question; `info` is what the environment's tasks hold beside it.

        Returns the whole conversation; `.answer` is what the team answered. Raises RuntimeError
        where it failed.
        """
        return await self.play(self._make_task(question, info))

    def ask_now(self, question: str, **info: Any) -> Episode:
        """Ask the team from code without an event loop."""
        self._check_open()
        return self._wait(self._play(self._make_task(question, info), self.context.manner, 0))

    async def play(
        self, task: Task, *, settings: PlaySettings | None = None, attempt: int = 0
    ) -> Episode:
        """Let the team work on a task; the same task and attempt draw the same.

        Raises RuntimeError where the team failed.
        """
        self._check_open()
        playing = self._play(task, settings or self.context.manner, attempt)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(playing, self._loop))

    def _make_task(self, question: str, info: Record) -> Task:
        self._asked += 1
        return Task(f"question-{self._asked}", question, info=info)

    async def _play(self, task: Task, settings: PlaySettings, attempt: int) -> Episode:
        context = self.context.with_settings(settings)
        episode = await play(context, task, step="asked", split="asked", attempt=attempt)
        if episode.error is not None:
            raise RuntimeError(f"the team could not answer: {episode.error}")
        return episode

    def _check_open(self) -> None:
        if self._loop.is_closed():
            raise RuntimeError("this team is closed; load it again with Team.load(RUN)")

    def _wait(self, work: Work[Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        """End what the run has started, and the thread."""
        if self._thread.is_alive():
            self._wait(self.run.close())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def __enter__(self) -> TrainedTeam:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    async def __aenter__(self) -> TrainedTeam:
        return self

    async def __aexit__(self, *error: object) -> None:
        await asyncio.to_thread(self.close)


class Team(BoundTeam):
    """The agents that a workflow sees, by name or role, bound to one episode."""

    @classmethod
    def load(cls, run: str | Path, *, step: str = checkpoint.LATEST) -> TrainedTeam:
        """Load the team of a run folder, with a checkpoint's weights (latest, best or step-N).

        `(await Team.load("runs/math").ask("What is 3 + 4?")).answer`. Raises ConfigError if there
        is no such run or checkpoint, CheckpointError if it is damaged.
        """
        folder = RunFolder.existing(Path(run))
        built = build(load_plan(folder.config))
        with checkpoint.held(folder, step) as saved:
            built.restore(saved)
        return TrainedTeam(built)
