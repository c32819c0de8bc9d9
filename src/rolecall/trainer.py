"""The conductor: the only file that knows all seven hops of an id, from a task to new weights.

A step consumes tasks, produces episodes and then weights; it is unblocked by its last episode.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from rolecall import checkpoint, learning
from rolecall.assembly import Run
from rolecall.collecting import Collector
from rolecall.core import Episode
from rolecall.episodes import write_parquet
from rolecall.evaluate import evaluate
from rolecall.learners.local import DivergedError
from rolecall.learners.updates import Update
from rolecall.monitor import metrics
from rolecall.opponents import Kept
from rolecall.rollout import Rollout
from rolecall.runs import RunFolder, journals
from rolecall.scope import task_factory

log = logging.getLogger("rolecall")
LARGEST_MISMATCH = 1e-4  # of sampler and learner log-probs in float32 on a CPU, in nats


class NothingTrainsError(RuntimeError):
    """Several steps in a row had nothing to train on."""


class Display(Protocol):
    """Who watches: a live table, or nobody."""

    def step(self, record: dict[str, Any]) -> None: ...
    def evaluation(self, record: dict[str, Any]) -> None: ...


class Tracker(Protocol):
    """Where else metrics go."""

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
        self.saved = -1  # step of the newest checkpoint
        self.idle = 0  # steps in a row without anything to train on
        self.best = -1.0
        self.started = time.monotonic()
        devices = {model.device.type for model in run.models.values()}
        self._exact = (  # on stale turns the difference is drift
            self.config.learner.dtype == "float32"
            and devices == {"cpu"}
            and self.config.trainer.max_staleness == 0
        )
        self.earlier_s = 0.0

    async def train(self) -> None:
        """Raises NothingTrainsError or DivergedError; it saves first, also when cancelled."""
        asyncio.get_running_loop().set_task_factory(task_factory)
        await self._resume()
        try:
            if self.done == 0:
                await self._evaluate("before")
            while self.done < self.config.trainer.steps:
                await self._step(self.done + 1)
                await self._after_step()
            await self._evaluate("after")
        except (asyncio.CancelledError, NothingTrainsError, DivergedError):
            self._save()
            raise
        finally:
            for rollout in self.ahead:
                rollout.cancel()
            await asyncio.gather(*self.ahead, return_exceptions=True)
            for tracker in self.trackers:
                tracker.close()

    async def _resume(self) -> None:
        found = checkpoint.pointed(self.folder.checkpoints, checkpoint.LATEST)
        if found is not None:
            self.run.restore(found)
            self.done = self.saved = checkpoint.step_of(found)
            log.info("resumed step=%d", self.done)
        self.folder.forget_after(self.done)
        for step, path in journals(self.folder):
            if step <= self.done:
                path.unlink()
        records = self.folder.read_metrics()
        self.earlier_s = max((r["time/run_s"] for r in records), default=0.0)
        evaluations = [r for r in records if r["kind"] == "evaluation"]
        self.best = max((r[self._headline] for r in evaluations), default=-1.0)
        await learning.publish(self.run, list(self.run.learners))

    async def _step(self, step: int) -> None:
        """Hops 1 to 7."""
        run, started = self.run, time.monotonic()
        opponents = {name: pool.of(step) for name, pool in run.opponents.items()}
        await self._play_against(opponents)
        rollout = await self._rollout(step)
        collected = time.monotonic()
        await learning.credit(run, rollout.episodes)
        played = [*rollout.episodes, *rollout.unused]
        write_parquet(self.folder.episode_file(step), played, step=step)
        for tracker in self.trackers:
            if isinstance(tracker, EpisodeTracker):
                tracker.episodes(step, played)
        credited = time.monotonic()
        await run.engine.sleep()
        updates, learned = await learning.update(
            run, rollout.episodes, step=step, apart=self.config.trainer.max_staleness > 0
        )
        updated = time.monotonic()
        await run.engine.wake()
        await learning.publish(run, list(updates))
        self.done = step
        run.drawing.finished(step, played)
        for pool in run.opponents.values():
            pool.finished(step)
        record = metrics.of_rollout(rollout) | learned
        for policy, update in updates.items():
            record |= metrics.of_update(policy, update)
        record |= {f"policy/{name}/of_step": kept for name, (kept, _) in opponents.items()}
        record |= _pace(rollout, started, collected, credited, updated)
        record["time/run_s"] = self._elapsed()
        self._report(record)
        self._check_progress(rollout, updates)

    async def _play_against(self, opponents: dict[str, Kept]) -> None:
        for name, (kept, weights) in opponents.items():
            await self.run.engine.load(name, kept, weights)

    async def _rollout(self, step: int) -> Rollout:
        """This step's groups; those of up to `max_staleness` later steps are under way meanwhile.

        A later step starts at the weights of `max_staleness` updates before its own, at the oldest.
        """
        lag, last = self.config.trainer.max_staleness, self.config.trainer.steps
        while len(self.ahead) <= lag and step + len(self.ahead) <= last:
            collecting = self.collector.collect(step + len(self.ahead))
            self.ahead.append(asyncio.create_task(collecting))
        rollout = await self.ahead[0]
        self.ahead.popleft()
        versions = {name: learner.version for name, learner in self.run.learners.items()}
        rollout.drop_stale(versions, most=lag)
        return rollout

    def _check_progress(self, rollout: Rollout, updates: dict[str, Update]) -> None:
        for policy, update in updates.items():
            if update.skipped:
                log.warning("update skipped policy=%s turn=%s", policy, update.skipped)
            for agent, found in update.agent_metrics.items():
                gap = found.get("mismatch_max", 0.0)
                if self._exact and gap > LARGEST_MISMATCH:
                    log.warning("mismatch agent=%s max=%g", agent, gap)
        self.idle = 0 if updates else self.idle + 1
        if self.idle >= self.config.trainer.idle_steps:
            error = f"; the last error: {rollout.last_error}" if rollout.last_error else ""
            raise NothingTrainsError(
                f"nothing to train on in {self.idle} steps in a row (up to step {self.done}): "
                f"{len(rollout.groups)} groups were left of {self.config.rollout.groups}, and no "
                f"turn in them did better than another{error}"
            )

    async def _after_step(self) -> None:
        config = self.config
        last = self.done == config.trainer.steps
        every = config.evaluation.every
        due = bool(every) and self.done % every == 0
        if self.done % config.trainer.save_every == 0 or due or last:
            self._save()
        if due and not last:
            await self._evaluate("during")

    def _save(self) -> None:
        if self.saved == self.done:
            return
        checkpoint.save(
            self.folder.checkpoints,
            self.done,
            self.run.parts,
            states=[part.state_dict() for part in self.run.stateful],
            keep=self.config.trainer.keep,
        )
        self.saved = self.done
        for step, path in journals(self.folder):
            if step <= self.done:
                path.unlink()

    async def _evaluate(self, when: str) -> None:
        records = self.folder.read_metrics()
        known = [r for r in records if r["kind"] == "evaluation" and r["step"] == self.done]
        if not self.run.test or known:
            return
        config = self.config.evaluation
        await self._play_against({name: p.first for name, p in self.run.opponents.items()})
        if self.config.deterministic:
            await self.run.engine.sleep()
        found, rollout = await evaluate(
            self.run.stage, self.run.test, samples=config.samples, k=config.k, greedy=config.greedy
        )
        write_parquet(
            self.folder.path / f"evaluation-{self.done:06d}.parquet",
            [*rollout.episodes, *rollout.unused],
            step=self.done,
        )
        record = {"kind": "evaluation", "step": self.done, "when": when, **found}
        record["time/run_s"] = self._elapsed()
        self.folder.append_metrics(record)
        self.display.evaluation(record)
        for tracker in self.trackers:
            tracker.log(self.done, metrics.of_evaluation(found))
        log.info("evaluation=%s step=%d score=%.4f", when, self.done, found[self._headline])
        if found[self._headline] > self.best:
            self.best = found[self._headline]
            if self.saved == self.done:
                checkpoint.point(self.folder.checkpoints, checkpoint.BEST, self.done)

    def _elapsed(self) -> float:
        """Seconds of this run, those before it was resumed included."""
        return self.earlier_s + time.monotonic() - self.started

    @property
    def _headline(self) -> str:
        return f"avg@{self.config.evaluation.samples}"

    def _report(self, record: dict[str, float]) -> None:
        full = {"kind": "step", "step": self.done, **record}
        self.folder.append_metrics(full)
        self.display.step(full)
        score = record.get("score", float("nan"))
        log.info("step=%d score=%.4f step_s=%.2f", self.done, score, record["time/step_s"])
        for tracker in self.trackers:
            tracker.log(self.done, record)


def _pace(
    rollout: Rollout, started: float, collected: float, credited: float, updated: float
) -> dict[str, float]:
    sampled = sum(len(t.tokens) for e in rollout.episodes for t in e.turns if t.tokens is not None)
    ended = time.monotonic()
    whole = ended - started
    return {
        "time/step_s": whole,
        "time/rollout_share": (collected - started) / whole,
        "time/credit_share": (credited - collected) / whole,
        "time/update_share": (updated - credited) / whole,
        "time/publish_share": (ended - updated) / whole,
        "pace/sampled_ids_per_s": sampled / (collected - started),
        "pace/ids_per_s": sampled / whole,
    }
