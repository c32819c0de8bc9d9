"""Runs the steps of training; the only file that knows the whole way from a task to new weights.

A step consumes tasks, produces episodes and then weights; it is unblocked by its last episode.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar, runtime_checkable

from rolecall.core.async_types import Work
from rolecall.core.interfaces.learner import DivergedError, Update
from rolecall.core.json_types import Record
from rolecall.core.types import Episode
from rolecall.environments.validation import SPLIT
from rolecall.learners.mismatch import Alarm
from rolecall.monitor import metrics
from rolecall.monitor.alarms import AlarmWatch
from rolecall.monitor.comparison import TEST, evaluations
from rolecall.monitor.diagnosis import Diagnosis, diagnose, group_by_task
from rolecall.monitor.diversity import diversity_metrics
from rolecall.rollout.episodes import Rollout
from rolecall.runtime import event_loop_watchdog
from rolecall.runtime.call_tree import task_factory
from rolecall.runtime.progress import activity
from rolecall.storage import checkpoint
from rolecall.storage.episode_io import write_parquet
from rolecall.storage.evaluation_journal import evaluation_journal, forget_evaluations
from rolecall.storage.journal import iterate_journals
from rolecall.storage.run_folder import RunFolder
from rolecall.storage.update_io import write_updates
from rolecall.training import train_step
from rolecall.training.collector import Collector
from rolecall.training.evaluating import evaluate_run
from rolecall.training.run import Run
from rolecall.training.signal_watch import SignalWatch

log = logging.getLogger("rolecall")
notices = logging.getLogger("rolecall.notices")
T = TypeVar("T")
AREAS = {TEST: "evaluation", SPLIT: "validation"}  # names of files and metrics of a split


class NothingTrainsError(RuntimeError):
    """Several steps in a row had nothing to train on."""


class Display(Protocol):
    """Shows a live table, or nothing."""

    def step(self, record: Record) -> None: ...
    def evaluation(self, record: Record) -> None: ...


class Tracker(Protocol):
    """Takes metrics to another service."""

    def log(self, step: int, record: dict[str, float]) -> None: ...
    def close(self) -> None: ...


@runtime_checkable
class EpisodeTracker(Tracker, Protocol):
    """A tracker that also takes what was said."""

    def episodes(self, step: int, episodes: Sequence[Episode]) -> None: ...


class Trainer:
    """Runs the steps of one run in its folder, from its last checkpoint on."""

    def __init__(
        self, run: Run, folder: RunFolder, *, display: Display, trackers: Sequence[Tracker] = ()
    ) -> None:
        self.run, self.folder, self.display, self.trackers = run, folder, display, trackers
        self.collector = Collector(run, folder)
        self.ahead: deque[asyncio.Task[Rollout]] = deque()  # rollouts of the next steps
        self.config = run.config
        self.done = 0  # steps whose update is in the weights
        self.moves = 0  # optimizer steps of all policies, when the newest step was done
        self.saved = -1  # step of the newest checkpoint
        moved = (group for group in run.algorithm_groups if group.algorithm.moves_policies)
        self.signals = SignalWatch(
            sorted(agent for group in moved for agent in group.agents),
            patience=self.config.trainer.idle_steps,
        )
        self.watch = AlarmWatch({name: run.config.team[name].policy for name in run.algorithms})
        self.idle = 0  # steps in a row without anything to train on
        self.best = -math.inf  # the highest score of an evaluation that chooses
        self.started = time.monotonic()
        exact = "exact" in run.engine.can and all(
            learner.exact and not run.config.is_rounded(name)
            for name, learner in run.learners.items()
        )
        self.alarm = Alarm(exact=exact)
        for policies, account in run.accounts.items():
            account.keep(folder.spent(policies))
        self._diagnosed: set[str] = set()  # cases of steps without a signal that were told
        self._compared = False  # whether sampler and learner were, in this process
        self.earlier_s = 0.0

    async def train(self) -> None:
        """Train until the end; saves the run before it raises, also when cancelled.

        Raises NothingTrainsError or DivergedError, and CheckpointError if the run has done steps
        and no checkpoint can be read.
        """
        asyncio.get_running_loop().set_task_factory(task_factory)
        with event_loop_watchdog.watch_loop():
            await self._train()

    async def _train(self) -> None:
        await self._resume()
        try:
            if self.done == 0:
                await self._evaluate("before")
            elif self._is_evaluated(self.done):
                await self._evaluate("during")  # unless it is known: a stop may have cut it short
            with train_step.threads_shared(self.config.trainer.max_staleness > 0):
                while self.done < self.config.trainer.steps:
                    await self._step(self.done + 1)
                    await self._after_step()
            await self._evaluate("after")
        except (asyncio.CancelledError, NothingTrainsError, DivergedError):
            self._save_whole_step()
            raise
        finally:
            for rollout in self.ahead:
                rollout.cancel()
            await asyncio.gather(*self.ahead, return_exceptions=True)
            await self.collector.close()
            for tracker in self.trackers:
                self._track(tracker, tracker.close)

    async def _resume(self) -> None:
        saved = self._newest_checkpoint()
        if saved is not None:
            for state in self.run.restore(saved):
                self.collector.load_state_dict(state)
            self.done = self.saved = checkpoint.checkpoint_step(saved)
            log.info("resumed step=%d", self.done)
        self.moves = self._num_moves()
        self.folder.forget_after(self.done)
        self._remove_journals()
        forget_evaluations(self.folder.journal, but=self.done)
        records = self.folder.read_metrics()
        recorded = {r["step"] for r in records if r["kind"] == "step"}
        if lost := [step for step in range(1, self.done + 1) if step not in recorded]:
            notices.warning(
                "%s has no record of %d of the %d steps that are done (the first: step %d)",
                self.folder.metrics, len(lost), self.done, lost[0],
            )  # fmt: skip
        for record in records:
            if record["kind"] == "step":
                self.watch.after_step(record)  # what it raises was reported before
        self.earlier_s = max((r.get("time/run_s", 0.0) for r in records), default=0.0)
        chosen = evaluations(records, split=self._chosen_on)
        self.best = max(
            (r[self._headline] for r in chosen if self._headline in r), default=-math.inf
        )
        await train_step.publish(self.run, list(self.run.learners))

    def _newest_checkpoint(self) -> Path | None:
        """Return the newest whole checkpoint; damaged ones that are newer are set aside."""
        newest, passed = checkpoint.find_newest(self.folder.checkpoints)
        for name, wrong in passed.items():
            notices.warning(
                "the checkpoint %s is damaged and not used: %s",
                self.folder.checkpoints / name,
                wrong,
            )
        if newest is None:
            self._refuse_to_start_again(damaged=bool(passed))
            return None
        for name in passed.keys() - {checkpoint.LATEST}:
            checkpoint.set_aside(self.folder.checkpoints / name)
        if passed:
            checkpoint.point(
                self.folder.checkpoints, checkpoint.LATEST, checkpoint.checkpoint_step(newest)
            )
            notices.warning("the run continues from %s, and does the steps after it again", newest)
        return newest

    def _refuse_to_start_again(self, *, damaged: bool) -> None:
        """Raise CheckpointError where starting at step 0 would throw away a run that had saved."""
        done = self.folder.num_steps()
        # The journal of step 1 stays until a first checkpoint holds that step. Pairs of a data
        # set have no journal.
        never_saved = any(step == 1 for step, _ in iterate_journals(self.folder.journal)) or (
            bool(self.run.data) and done <= self.config.trainer.save_every
        )
        if damaged or (done and not never_saved):
            raise checkpoint.CheckpointError(
                f"{self.folder.path} has {done} recorded steps and no whole checkpoint to "
                "continue from. Put one back, or train in another --output"
            )

    async def _step(self, step: int) -> None:
        """Do one whole step, from tasks to new weights."""
        run, started = self.run, time.monotonic()
        opponents = {name: pool.kept_step(step) for name, pool in run.opponent_pools.items()}
        await self._play_against(opponents)
        rollout = await self._rollout(step)
        collected = time.monotonic()
        await train_step.refresh_references(run, step)
        await train_step.credit(run, rollout.episodes)
        train_step.leave_out_stale(run, rollout)
        played = [*rollout.episodes, *rollout.unused]
        write_parquet(self.folder.episode_file(step), played, step=step)
        for tracker in self.trackers:
            if isinstance(tracker, EpisodeTracker):
                self._track(tracker, partial(tracker.episodes, step, played))
        with activity(f"step {step}: updating weights"):
            updates = await _to_its_end(
                self._update(step, rollout, opponents, clock=(started, collected, time.monotonic()))
            )
        self._check_progress(rollout, updates)

    async def _update(
        self,
        step: int,
        rollout: Rollout,
        opponents: dict[str, int],
        *,
        clock: tuple[float, float, float],
    ) -> dict[str, Update]:
        """Update the weights, publish them and record the step."""
        run = self.run
        await run.engine.sleep(weights=True)
        updates, learned = await train_step.update(
            run, rollout.episodes, step=step, apart=self.config.trainer.max_staleness > 0
        )
        write_updates(
            self.folder.update_file(step), updates, (t for e in rollout.episodes for t in e.turns)
        )
        updated = time.monotonic()
        await train_step.publish(run, list(updates))
        self.done, self.moves = step, self._num_moves()
        run.sampler.update(step, [*rollout.episodes, *rollout.unused])
        for pool in run.opponent_pools.values():
            pool.after_step(step)
        record = metrics.rollout_metrics(rollout, is_data=bool(run.data)) | learned
        if not run.data:
            roles = {name: agent.role for name, agent in run.context.agents.items()}
            record |= diversity_metrics(rollout.groups, roles)
        for policy, update in updates.items():
            record |= metrics.update_metrics(policy, update)
        record |= {f"policy/{name}/of_step": kept for name, kept in opponents.items()}
        record |= _pace(rollout, *clock, updated, is_data=bool(run.data))
        record["time/run_s"] = self._elapsed()
        self._report(record, error=rollout.first_error)
        return updates

    def _num_moves(self) -> int:
        return sum(learner.num_steps for learner in self.run.learners.values())

    async def _play_against(self, opponents: dict[str, int]) -> None:
        """Play against `opponents`: the step whose weights each policy with an opponent pool
        plays."""
        for name, kept in opponents.items():
            await self.run.publisher.publish(name, kept)

    async def _rollout(self, step: int) -> Rollout:
        """Return this step's groups; up to `max_staleness` later steps are under way meanwhile.

        A later step starts at the weights of `max_staleness` updates before its own, at the oldest.
        """
        lag, last = self.config.trainer.max_staleness, self.config.trainer.steps
        while len(self.ahead) <= lag and step + len(self.ahead) <= last:
            collecting = self.collector.collect(step + len(self.ahead))
            self.ahead.append(asyncio.create_task(collecting))
        rollout = await self.ahead[0]
        self.ahead.popleft()
        rollout.drop_stale(self.run.versions, most=lag + self.config.rollout.carry)
        return rollout

    def _check_progress(self, rollout: Rollout, updates: dict[str, Update]) -> None:
        for policy, update in updates.items():
            if update.skipped:
                log.warning("update skipped policy=%s turn=%s", policy, update.skipped)
        self._check_mismatch(updates)
        moves = self.done > self.config.trainer.critic_warmup and any(
            group.algorithm.moves_policies for group in self.run.algorithm_groups
        )
        self.idle = 0 if updates or not moves else self.idle + 1
        diagnosis = self._diagnose(rollout) if self.idle and not self.run.data else None
        silent = self.signals.after_step(turn for e in rollout.episodes for turn in e.turns)
        if self.idle < self.config.trainer.idle_steps:
            for agent in silent:
                notices.warning(
                    "agent %s is not trained: in %d steps in a row none of its turns was worth "
                    "more or less than those that it is compared with; look at what rewards pay it",
                    agent, self.config.trainer.idle_steps,
                )  # fmt: skip
        if self.idle >= self.config.trainer.idle_steps:
            error = f"; the first error: {rollout.first_error}" if rollout.first_error else ""
            if rollout.num_cut:
                error += f"; {rollout.num_cut} attempts took too long (rollout.deadline_s)"
            raise NothingTrainsError(
                f"nothing to train on in {self.idle} steps in a row (up to step {self.done}): "
                f"{len(rollout.groups)} groups were left of {self.config.rollout.groups}, and no "
                f"turn in them did better than another{error}"
                + ("" if diagnosis is None else f". {diagnosis.summary()}")
            )

    def _diagnose(self, rollout: Rollout) -> Diagnosis | None:
        """Say why a step had no signal, once for each case; None where it had one."""
        context = self.run.context
        groups = group_by_task([*rollout.episodes, *rollout.unused])
        diagnosis = diagnose(groups, context.agents, context.environment)
        if diagnosis.case == "signal":  # something else kept it from the update
            return None
        if diagnosis.case not in self._diagnosed:
            self._diagnosed.add(diagnosis.case)
            notices.warning("step %d: %s", self.done, "\n".join(diagnosis.lines()))
        return diagnosis

    def _check_mismatch(self, updates: dict[str, Update]) -> None:
        """Check fresh turns of unfiltered sampling; in stale ones the difference is drift."""
        config = self.config
        stale = config.trainer.max_staleness or config.rollout.carry
        if stale or config.rollout.allow_filtered_sampling:
            return
        for update in updates.values():
            for agent, mismatch in update.agent_metrics.items():
                if config.team[agent].cross_policy is not None:
                    continue  # its earlier weights say something else
                self.alarm.check(agent, mismatch, first=not self._compared)
                if warning := self.alarm.warning(mismatch):
                    log.warning("mismatch agent=%s %s", agent, warning)
        self._compared = self._compared or bool(updates)

    async def _after_step(self) -> None:
        config = self.config
        last = self.done == config.trainer.steps
        due = self._is_evaluated(self.done)
        is_pinned = self.done in config.trainer.pin
        if self.done % config.trainer.save_every == 0 or is_pinned or due or last:
            self._save()
        if due:
            await self._evaluate("during")

    def _is_evaluated(self, step: int) -> bool:
        """Return whether an evaluation follows this step, beside those before and after the run.

        The last step's team is tested after the run, and validated as the others are.
        """
        every = self.config.evaluation.every
        if step == self.config.trainer.steps:
            return bool(self.run.validation)
        return bool(every) and step % every == 0

    def _save_whole_step(self) -> None:
        """Save, unless a policy has begun the next step's update and another one has not ended."""
        if self._num_moves() == self.moves:
            self._save()
        else:
            notices.warning(
                "the update of step %d has not ended: %s", self.done + 1,
                f"the newest checkpoint is that of step {self.saved}" if self.saved > 0
                else "the run will start again",
            )  # fmt: skip

    def _save(self) -> None:
        if self.saved == self.done:
            return
        carried = [self.collector] if self.config.rollout.carry else []
        checkpoint.save(
            self.folder.checkpoints,
            self.done,
            self.run.parts,
            states=[owner.state_dict() for owner in (*self.run.stateful, *carried)],
            keep=self.config.trainer.keep,
            pinned=frozenset(self.config.trainer.pin),
        )
        self.saved = self.done
        self._remove_journals()

    def _remove_journals(self) -> None:
        """Remove the journals of steps that are done and have no group still being played."""
        for step, path in iterate_journals(self.folder.journal):
            if step <= self.done and step not in self.collector.open_steps:
                path.unlink()

    async def _evaluate(self, when: str) -> None:
        split = self._chosen_on if when == "during" else TEST
        tasks = self.run.validation if split == SPLIT else self.run.test
        records = evaluations(self.folder.read_metrics(), split=split)
        if not tasks or any(record["step"] == self.done for record in records):
            return
        await self._play_against({name: p.first for name, p in self.run.opponent_pools.items()})
        name = f"{AREAS[split]}-{self.done:06d}"
        journal = evaluation_journal(self.folder.journal, self.config, tasks, of=name)
        scores = await evaluate_run(
            self.run,
            tasks,
            split=split,
            step=self.done,
            file=self.folder.path / f"{name}.parquet",
            journal=journal,
        )
        record = {"kind": "evaluation", "step": self.done, "when": when, "split": split, **scores}
        record["time/run_s"] = self._elapsed()
        # The pointer moves before the record is written: a run that is stopped between the two
        # evaluates again, and comes to the same.
        if split == self._chosen_on and scores[self._headline] > self.best:
            self.best = scores[self._headline]
            if self.saved == self.done:
                checkpoint.point(self.folder.checkpoints, checkpoint.BEST, self.done)
        self.folder.append_metrics(record)
        journal.remove()
        self.display.evaluation(record)
        for tracker in self.trackers:
            tracked = metrics.evaluation_metrics(scores, AREAS[split])
            self._track(tracker, partial(tracker.log, self.done, tracked))
        log.info(
            "evaluation=%s split=%s step=%d score=%.4f",
            when, split, self.done, scores[self._headline],
        )  # fmt: skip

    @property
    def _chosen_on(self) -> str:
        """The split on which the checkpoint `best` is chosen."""
        return SPLIT if self.run.validation else TEST

    def _elapsed(self) -> float:
        """Seconds of this run, those before it was resumed included."""
        return self.earlier_s + time.monotonic() - self.started

    @property
    def _headline(self) -> str:
        return self.config.evaluation.headline

    def _report(self, record: dict[str, float], *, error: str) -> None:
        full = {"kind": "step", "step": self.done, **record} | ({"error": error} if error else {})
        self.folder.append_metrics(full)
        self.display.step(full)
        for alarm in self.watch.after_step(full):
            notices.warning("step %d: %s", self.done, alarm.text)
        score = record.get("score", float("nan"))
        scored = "" if math.isnan(score) else f" score={score:.4f}"
        log.info("step=%d%s step_s=%.2f", self.done, scored, record["time/step_s"])
        for tracker in self.trackers:
            self._track(tracker, partial(tracker.log, self.done, record))

    def _track(self, tracker: Tracker, tell: Callable[[], None]) -> None:
        """Call a tracker.

        One that fails is left out from then on: the run folder has the record.
        """
        try:
            tell()
        except Exception as error:  # of another system, or of the user's code
            self.trackers = [other for other in self.trackers if other is not tracker]
            notices.warning(
                "tracker %s failed and gets nothing more: %s: %s",
                type(tracker).__name__, type(error).__name__, error,
            )  # fmt: skip


async def _to_its_end(work: Work[T]) -> T:
    """Await what must not be stopped halfway: a cancellation waits for its end.

    A second cancellation does not.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise


def _pace(
    rollout: Rollout,
    started: float,
    collected: float,
    credited: float,
    updated: float,
    *,
    is_data: bool,
) -> dict[str, float]:
    sampled = sum(len(t.tokens) for e in rollout.episodes for t in e.turns if t.tokens is not None)
    ended = time.monotonic()
    whole = ended - started
    pace = {
        "time/step_s": whole,
        "time/rollout_share": (collected - started) / whole,
        "time/credit_share": (credited - collected) / whole,
        "time/update_share": (updated - credited) / whole,
        "time/publish_share": (ended - updated) / whole,
        **metrics.wall_metrics([*rollout.episodes, *rollout.unused]),
        "pace/tokens_per_s": sampled / whole,
    }
    if not is_data:  # rows are read, not sampled
        pace["pace/sampled_tokens_per_s"] = sampled / (collected - started)
    return pace
