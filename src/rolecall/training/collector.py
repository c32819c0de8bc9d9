"""Collects the groups of a step: plays tasks, and replaces groups that are filtered out.

Consumes tasks and a journal, produces kept and prepared groups; unblocked by the last episode.
"""

from __future__ import annotations

import asyncio
import logging
import time

from rolecall.core.json_types import State
from rolecall.core.types import Episode, Group, Swap, Task
from rolecall.rollout.episodes import Rollout, replay
from rolecall.rollout.group_player import Collection
from rolecall.rollout.group_rewards import pay_groups
from rolecall.rollout.own_answers import add_own_answers
from rolecall.rollout.task_sampler import draw
from rolecall.runtime import call_tree
from rolecall.storage.journal import Journal
from rolecall.storage.run_folder import RunFolder
from rolecall.training.run import Run

log = logging.getLogger("rolecall")
MOST_ROUNDS = 10  # in which a step looks for groups that are kept
TOLERANCE = 1e-6  # rounding of a mean score


class Collector:
    """Collects the groups of any step.

    With `rollout.deadline_s` a step does not wait for its slowest episodes. With `rollout.carry`
    their groups go on, sampled by newer weights as these are published, and are trained with the
    first later step that finds them whole. Otherwise, and in the end, they are cut: what is missing
    is counted, and is in no group.
    """

    def __init__(self, run: Run, folder: RunFolder) -> None:
        self.run, self.folder = run, folder
        self.carried: list[Collection] = []
        self._taking = asyncio.Lock()  # several steps may be collected at once
        self._carry = run.config.rollout.carry

    async def collect(self, step: int) -> Rollout:
        """Collect a step's episodes; raises what the journal's disk raises.

        A failed episode is in `failures`.
        """
        groups, deadline_s = self.run.config.rollout.groups, self.run.config.rollout.deadline_s
        if self.run.data:
            earlier = [groups] * (step - 1)
            seed = self.run.config.trainer.seed
            rows = draw(self.run.data, groups, seed=seed, taken=earlier)
            if any(
                algorithm_group.algorithm.answers_data
                for algorithm_group in self.run.algorithm_groups
            ):
                if self.run.config.deterministic:
                    await self.run.engine.reset_prefix_cache()
                rows = await add_own_answers(self.run.context, rows, step=step)
            return Rollout(groups=rows)
        until = None if deadline_s is None else time.monotonic() + deadline_s
        journal = Journal(self.folder.journal_file(step))
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
                whole.add(await self._round(step, tasks, journal, until))
                late = until is not None and time.monotonic() > until
                if len(whole.groups) >= groups or not self._filters_groups or late:
                    break
        finally:
            journal.close()
        if len(whole.groups) < groups and self._filters_groups:
            log.warning("step=%d groups=%d wanted=%d", step, len(whole.groups), groups)
        async with self._taking:
            whole.add(await self._of_earlier_steps(step))
        await self._prepare(whole.groups)
        return whole

    async def _round(
        self, step: int, tasks: list[Task], journal: Journal, until: float | None
    ) -> Rollout:
        config = self.run.config
        names = {task.id for task in tasks}
        finished = [episode for episode in journal.read() if episode.task.id in names]
        if config.deterministic and len(finished) < len(tasks) * config.rollout.group_size:
            # Rows of a batch depend on which episodes share it, so a part of a round cannot be
            # continued bit for bit: it is played again.
            journal.drop(finished)
            finished = []
        if config.deterministic:
            await (
                self.run.engine.reset_prefix_cache()
            )  # a resumed round finds no cache of an earlier one
        collection = self._begun(step, tasks, journal, finished)
        await collection.wait(within_s=None if until is None else until - time.monotonic())
        last = step == config.trainer.steps
        if collection.open and self._carry and not last:
            self.carried.append(collection)
            return self._filtered(collection.take())
        return self._filtered(await collection.cut())

    def _begun(
        self, step: int, tasks: list[Task], journal: Journal, finished: list[Episode]
    ) -> Collection:
        return Collection(
            self.run.context,
            tasks,
            step=step,
            group_size=self.run.config.rollout.group_size,
            min_group=max(
                algorithm_group.algorithm.least_attempts(self.run.context.workflow.is_group)
                for algorithm_group in self.run.algorithm_groups
            ),
            journal=journal,
            finished=finished,
        )

    async def _of_earlier_steps(self, step: int) -> Rollout:
        """Return the groups of earlier steps that are whole; those that will be too old are cut."""
        rollout = Rollout(groups=[])
        for collection in list(self.carried):
            assert isinstance(collection.step, int)
            if collection.step >= step:
                continue
            await collection.wait(within_s=0)
            late = collection.step + self._carry <= step or step == self.run.config.trainer.steps
            whole = self._filtered(await collection.cut() if late else collection.take())
            whole.num_carried = len(whole.groups)
            rollout.add(whole)
            if not collection.open:
                self.carried.remove(collection)
        return rollout

    def _filtered(self, rollout: Rollout) -> Rollout:
        """Pay what depends on the whole group; drop the groups that the algorithm leaves out."""
        pay_groups(self.run.context, rollout.groups)
        filtered = [group for group in rollout.groups if not self._keeps(group)]
        rollout.groups = [group for group in rollout.groups if group not in filtered]
        rollout.unused += [episode for group in filtered for episode in group]
        rollout.num_filtered += len(filtered)
        return rollout

    @property
    def open_steps(self) -> set[int]:
        """Return the steps that have groups which are carried over."""
        return {int(collection.step) for collection in self.carried if collection.open}

    def state_dict(self) -> State:
        """Return the tasks of groups that are carried over, by their steps."""
        return {"open": {str(each.step): list(each.open) for each in self.carried if each.open}}

    def load_state_dict(self, state: State) -> None:
        """Continue groups of which an episode has ended; others are not begun again."""
        for step, names in state["open"].items():
            journal = Journal(self.folder.journal_file(int(step)))
            finished = [episode for episode in journal.read() if episode.task.id in names]
            tasks = {episode.task.id: episode.task for episode in finished}
            if tasks and self._carry:
                self.carried.append(self._begun(int(step), list(tasks.values()), journal, finished))

    async def close(self) -> None:
        """End what is carried over."""
        for collection in self.carried:
            await collection.cut()

    @property
    def _filters_groups(self) -> bool:
        return self.run.config.rollout.group_filter is not None or any(
            algorithm_group.algorithm.filters_groups
            for algorithm_group in self.run.algorithm_groups
        )

    def _keeps(self, group: Group) -> bool:
        bounds = self.run.config.rollout.group_filter
        if bounds is not None:
            mean = sum(episode.headline or 0.0 for episode in group) / len(group)
            if not bounds.above + TOLERANCE < mean < bounds.below - TOLERANCE:
                return False
        return all(
            algorithm_group.algorithm.keep_group(group)
            for algorithm_group in self.run.algorithm_groups
        )

    async def _prepare(self, groups: list[Group]) -> None:
        """Let algorithms replay episodes; all groups at once, as many episodes as a step plays.

        A place that gets free is taken before the replay that leaves it has ended as a scope. So
        the engine, which steps while all scopes wait, never steps between the two.
        """
        context = self.run.context
        places = call_tree.Semaphore(context.concurrency)
        if self.run.config.deterministic:
            await (
                self.run.engine.reset_prefix_cache()
            )  # episodes from a journal have filled no cache

        async def again(episode: Episode, swap: Swap | None) -> Episode:
            async with places:
                return await replay(context, episode, swap)

        async def one(group: Group) -> None:
            with call_tree.enter_scope((), barrier=context.barrier):
                for algorithm_group in self.run.algorithm_groups:
                    await algorithm_group.algorithm.prepare(group, again)

        async with asyncio.TaskGroup() as together:
            for group in groups:
                together.create_task(one(group))
