"""Plays tasks as groups of episodes, all at once; a step need not wait for the slowest.

It consumes (task, attempt) pairs, produces episodes, and is unblocked by an episode's end; each
finished episode is in the journal before anything else sees it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from rolecall.core.types import Episode, Task
from rolecall.rollout.episodes import Played, Rollout, RolloutContext, play_until_done
from rolecall.runtime import call_tree, progress
from rolecall.runtime.memory import seldom_collected

log = logging.getLogger("rolecall")
notices = logging.getLogger("rolecall.notices")
MOST_TOLD = 5  # kinds of errors that a person is told of at once; the log has all


GroupSize = int | Callable[[Task], int]  # attempts at each task


class Journal(Protocol):
    path: Path

    def append(self, episode: Episode) -> None: ...

    def settle(self) -> None: ...


class Collection:
    """`group_size` attempts at each of some tasks, which begin at once.

    An episode that something outside let down is repeated with a new seed `context.retries` times;
    then, or at once if it raised one of MISTAKES, it is dropped and counted. A group left with
    fewer than `min_group` episodes is dropped whole.
    """

    def __init__(
        self,
        context: RolloutContext,
        tasks: list[Task],
        *,
        step: int | str,
        split: str = "train",
        group_size: GroupSize,
        min_group: int = 1,
        journal: Journal | None = None,
        finished: Iterable[Episode] = (),
    ) -> None:
        """`finished`: episodes of a resumed step, which are taken over."""
        self.context, self.step, self.split = context, step, split
        self.min_group, self.journal = min_group, journal
        self._size = group_size if callable(group_size) else lambda _: group_size
        self.open = {task.id: task for task in tasks}  # groups that have not been taken
        assert len(self.open) == len(tasks), "a step drew the same task twice"
        self._played: dict[str, dict[int, Episode]] = {task.id: {} for task in tasks}
        for episode in finished:
            self._played[episode.task.id][episode.attempt] = episode
        self._todo = deque(
            (task, attempt)
            for task in tasks
            for attempt in range(self._size(task))
            if attempt not in self._played[task.id]
        )
        self._failed = Rollout(groups=[])  # what has failed since groups were taken
        label = f"step {step}: playing" if split == "train" else f"playing {split} tasks"
        self._progress = progress.Activity(label, len(self._todo), "attempts")
        number = min(context.concurrency, len(self._todo))
        self._workers = [asyncio.create_task(self._work()) for _ in range(number)]
        self._num_working = number
        if self._workers:
            progress.begin(self._progress)
        for worker in self._workers:  # also where they are cancelled with their event loop
            worker.add_done_callback(self._note_end)

    async def _work(self) -> None:
        # A worker stays a running scope from one episode to the next, so that a deterministic
        # engine does not step between the end of one and the start of another.
        with call_tree.enter_scope((), barrier=self.context.barrier):
            while self._todo:
                task, attempt = self._todo.popleft()
                played = await self._attempted(task, attempt)
                for failed in played.failed:
                    self._failed.note(failed)
                    log.warning("failed episode=%s error=%s", failed.id, failed.error)
                    _tell(self.context, failed)
                self._played[task.id][attempt] = played.episode
                self._progress.done += 1

    def _note_end(self, worker: asyncio.Task[None]) -> None:
        """Show the collection no more when its last worker has ended."""
        self._num_working -= 1
        if not self._num_working:
            progress.end(self._progress)

    async def _attempted(self, task: Task, attempt: int) -> Played:
        """Played where the context says."""
        context = self.context
        if context.player is not None:
            return await context.player.play(
                task, step=self.step, split=self.split, attempt=attempt, manner=context.manner,
                journal=None if self.journal is None else self.journal.path,
            )  # fmt: skip
        played = await play_until_done(
            context, task, step=self.step, split=self.split, attempt=attempt
        )
        if self.journal is not None:
            self.journal.append(played.episode)
        return played

    async def wait(self, *, within_s: float | None = None) -> None:
        """Wait until all has been played, or so long. Raises what ends the run."""
        if not self._workers:
            return
        try:
            with seldom_collected():
                done, _ = await asyncio.wait(
                    self._workers, timeout=within_s, return_when=asyncio.FIRST_EXCEPTION
                )
            for worker in done:
                worker.result()
        except BaseException:
            await self.cut()
            raise

    def take(self) -> Rollout:
        """Take the groups whose attempts have all ended, in the order of the tasks; each once.

        If there is a journal, each of them is on disk.
        """
        if self.journal is not None:
            self.journal.settle()
        rollout, self._failed = self._failed, Rollout(groups=[])
        whole = [n for n, task in self.open.items() if len(self._played[n]) == self._size(task)]
        for name in whole:
            self._give(name, rollout)
        return rollout

    async def cut(self) -> Rollout:
        """End what is under way. The groups that are left, with what has been played of them."""
        self._todo.clear()
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)
        rollout = self.take()
        for name in list(self.open):
            rollout.num_cut += self._size(self.open[name]) - len(self._played[name])
            self._give(name, rollout)
        return rollout

    def _give(self, name: str, rollout: Rollout) -> None:
        del self.open[name]
        played = self._played.pop(name)
        attempts = [played[attempt] for attempt in sorted(played)]
        group = [episode for episode in attempts if episode.error is None]
        rollout.unused += [episode for episode in attempts if episode.error is not None]
        if len(group) >= self.min_group:
            rollout.groups.append(group)
        else:
            rollout.unused += group
            rollout.num_dropped += 1


async def collect(
    context: RolloutContext,
    tasks: list[Task],
    *,
    step: int | str,
    split: str = "train",
    group_size: GroupSize,
    min_group: int = 1,
) -> Rollout:
    """Return all groups of these tasks, as a Collection plays them."""
    collection = Collection(
        context, tasks, step=step, split=split, group_size=group_size, min_group=min_group
    )
    await collection.wait()
    return collection.take()


def _tell(context: RolloutContext, episode: Episode) -> None:
    """Report the first error of each kind."""
    assert episode.error is not None
    kind = episode.error.partition(":")[0] + episode.error.rpartition("(")[2]
    if kind not in context.told and len(context.told) < MOST_TOLD:
        context.told.add(kind)
        notices.warning("an episode failed: %s", episode.error)
