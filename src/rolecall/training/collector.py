"""Collects the groups of a step: plays tasks, and replaces groups that are filtered out.

Consumes tasks and a journal, produces kept and prepared groups; unblocked by the last episode.
"""

from __future__ import annotations

import asyncio
import logging

from rolecall.rollout.episodes import Rollout, collect, replay
from rolecall.rollout.task_sampler import drawn
from rolecall.runtime import call_tree
from rolecall.storage.run_folder import Journal, RunFolder, journal_path
from rolecall.training.run import Run
from rolecall.types import Episode, Group, Swap, Task

log = logging.getLogger("rolecall")
MOST_ROUNDS = 10  # in which a step looks for groups that are kept


class Collector:
    """Collects the groups of any step."""

    def __init__(self, run: Run, folder: RunFolder) -> None:
        self.run, self.folder = run, folder

    async def collect(self, step: int) -> Rollout:
        """Raises what the journal's disk raises; a failed episode is in `failures`."""
        wanted = self.run.config.rollout.groups
        if self.run.data:
            taken = [wanted] * (step - 1)
            seed = self.run.config.trainer.seed
            return Rollout(groups=drawn(self.run.data, wanted, seed=seed, taken=taken))
        journal = Journal(journal_path(self.folder, step))
        whole = Rollout(groups=[])
        try:
            for number in range(MOST_ROUNDS):
                tasks = self.run.sampler.sample(
                    step,
                    number=number,
                    kept=[group[0].task for group in whole.groups],
                    seen={episode.task.id for episode in (*whole.episodes, *whole.unused)},
                )
                if not tasks:
                    break
                whole.add(await self._round(step, tasks, journal))
                if len(whole.groups) >= wanted or not self._refuses:
                    break
        finally:
            journal.close()
        if len(whole.groups) < wanted and self._refuses:
            log.warning("step=%d groups=%d wanted=%d", step, len(whole.groups), wanted)
        await self._prepare(whole.groups)
        return whole

    async def _round(self, step: int, tasks: list[Task], journal: Journal) -> Rollout:
        config = self.run.config
        names = {task.id for task in tasks}
        finished = [episode for episode in journal.read() if episode.task.id in names]
        if config.deterministic and len(finished) < len(tasks) * config.rollout.group_size:
            # Rows of a batch depend on which episodes share it, so a part of a round cannot be
            # continued bit for bit: it is played again.
            journal.drop(finished)
            finished = []
        if config.deterministic:
            await self.run.engine.forget()  # a resumed round finds no cache of an earlier one
        rollout = await collect(
            self.run.context,
            tasks,
            step=step,
            group_size=config.rollout.group_size,
            min_group=max(part.algorithm.min_group for part in self.run.algorithm_groups),
            journal=journal,
            finished=finished,
        )
        filtered = [group for group in rollout.groups if not self._keeps(group)]
        rollout.groups = [group for group in rollout.groups if group not in filtered]
        rollout.unused += [episode for group in filtered for episode in group]
        rollout.num_filtered = len(filtered)
        return rollout

    @property
    def _refuses(self) -> bool:
        return any(part.algorithm.filters_groups for part in self.run.algorithm_groups)

    def _keeps(self, group: Group) -> bool:
        return all(part.algorithm.keep_group(group) for part in self.run.algorithm_groups)

    async def _prepare(self, groups: list[Group]) -> None:
        """Let algorithms replay episodes; all groups at once, as many episodes as a step plays.

        A place that gets free is taken before the replay that leaves it has ended as a scope. So
        the engine, which steps while all scopes wait, never steps between the two.
        """
        context = self.run.context
        places = call_tree.Semaphore(context.concurrency)
        if self.run.config.deterministic:
            await self.run.engine.forget()  # episodes from a journal have filled no cache

        async def again(episode: Episode, swap: Swap | None) -> Episode:
            async with places:
                return await replay(context, episode, swap)

        async def one(group: Group) -> None:
            with call_tree.entered((), barrier=context.barrier):
                for part in self.run.algorithm_groups:
                    await part.algorithm.prepare(group, again)

        async with asyncio.TaskGroup() as together:
            for group in groups:
                together.create_task(one(group))
