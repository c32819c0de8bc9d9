"""Runs a plan in its folder until the last step, or until it is told to stop."""

from __future__ import annotations

import asyncio
import gc
import shlex
import signal
import threading
from collections.abc import Callable, Sequence

import torch

from rolecall.config.schema import Config
from rolecall.core.errors import SAID, StoppedError
from rolecall.core.interfaces.learner import DivergedError
from rolecall.core.json_types import Record
from rolecall.learners.ranks.group import RankError
from rolecall.monitor import terminal
from rolecall.runs.finished import keep_what_there_is, show_shares, show_untrained, summarise
from rolecall.runs.services import running
from rolecall.runs.stop import Stop
from rolecall.runtime.consoles import PlainConsole
from rolecall.setup.build import build
from rolecall.setup.plan import Plan, validate
from rolecall.storage import checkpoint
from rolecall.storage.log_file import log_to_file
from rolecall.storage.run_folder import RunFolder
from rolecall.training.run import Run
from rolecall.training.trainer import NothingTrainsError, Trainer

console = PlainConsole()
Begin = Callable[[Run], None]  # what a run does before its first step


def finish(
    plan: Plan,
    folder: RunFolder,
    *,
    allow_changes: bool,
    stop: Stop,
    begin: Begin | None = None,
    again: Sequence[str] | None = None,
) -> Record:
    """Finish a run and return its summary.

    On a cluster the run is built again when ranks of a learner are lost; it goes on from its last
    checkpoint, with the episodes that it has journaled.

    `begin` is called if there is no checkpoint yet; `again`: the command that continues a
    stopped run, by default `train` with its folder.
    """
    config, restarts = plan.config, 0
    while True:
        done, run = folder.num_steps(), None
        try:
            run = build(plan)
            with running(run), folder.hold_started(config, allow_changes=allow_changes):
                if begin is not None and not checkpoint.list_checkpoints(folder.checkpoints):
                    begin(run)
                with log_to_file(folder.log):
                    _train(plan, run, folder, stop=stop, again=again or ["train", str(folder.path)])
                result = summarise(folder, config)
                if not result["updates"]:
                    show_shares(folder.read_metrics())
                else:
                    show_untrained(result)
                return result
        except (NothingTrainsError, DivergedError):
            keep_what_there_is(folder, config)
            raise
        except RankError as error:
            restarts = 1 if folder.num_steps() > done else restarts + 1
            unbuilt = run is None and error.raised  # others would raise the same
            if unbuilt or restarts > _most_restarts(config):
                raise
            console.print(f"{error}. The run is started again", soft_wrap=True, highlight=False)
            plan = validate(config)


def _most_restarts(config: Config) -> int:
    return config.cluster.restarts


def _train(plan: Plan, run: Run, folder: RunFolder, *, stop: Stop, again: Sequence[str]) -> None:
    config = run.config
    trackers = [tracker.make(folder.path) for tracker in plan.trackers]
    with terminal.LiveTable(
        list(config.team),
        total_steps=config.trainer.steps,
        measures=_measures(plan),
        episodes=folder.episode_file,
        console=console,
    ) as table:
        trainer = Trainer(run, folder, display=table, trackers=trackers)
        try:
            asyncio.run(_until_told_to_end(trainer, stop))
        except (KeyboardInterrupt, StoppedError) as error:
            kept = f"saved step {trainer.saved}" if trainer.saved > 0 else "saved no step"
            command = shlex.join(["rolecall", *again])
            console.print(f"Stopped and {kept}. Continue with: {command}", soft_wrap=True)
            error.add_note(SAID)
            raise


def _measures(plan: Plan) -> list[str]:
    """Return what is shown of each agent: rows of a data set have no reward, but losses count."""
    likelihoods = {one.takes_data for one in plan.algorithms.values()} - {None}
    shown = [] if plan.config.rollout.data is not None else ["reward"]
    if likelihoods:
        shown.append("loss")
        shown += ["pair_accuracy"] if "preferences" in likelihoods else []
        shown.append("trained_tokens")
    return [*shown, "grad_norm"]


async def _until_told_to_end(trainer: Trainer, stop: Stop) -> None:
    """End a run on SIGTERM, which schedulers send, as on Ctrl-C: it saves first."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    stopped = False

    def end() -> None:
        nonlocal stopped
        stopped = True
        task.cancel()

    signals = threading.current_thread() is threading.main_thread()
    if signals:
        loop.add_signal_handler(signal.SIGTERM, end)
    stop.ends(lambda: loop.call_soon_threadsafe(end))
    try:
        await trainer.train()
    except asyncio.CancelledError:
        if stopped:
            raise StoppedError(signal.SIGTERM) from None
        raise
    finally:
        stop.over()
        if signals:
            loop.remove_signal_handler(signal.SIGTERM)


def make_room() -> None:
    """Free the models of one run before the next one loads its own; not yet run on a GPU."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
