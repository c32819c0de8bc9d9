"""`rolecall train`: trains until the last step, or until it is told to stop."""

from __future__ import annotations

import asyncio
import json
import shlex
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from rolecall.cli.check import agents_of, agents_table
from rolecall.cli.run_paths import is_run
from rolecall.cli.services import running
from rolecall.config.cluster import RayClusterConfig
from rolecall.config.errors import ConfigError
from rolecall.config.load import find
from rolecall.config.schema import Config
from rolecall.errors import StoppedError
from rolecall.learners.ranks.group import RankError
from rolecall.monitor import report, summary, terminal
from rolecall.setup.build import build
from rolecall.setup.plan import Plan, load_plan, validate
from rolecall.storage import run_folder
from rolecall.storage.log_file import logged
from rolecall.storage.run_folder import RunFolder
from rolecall.training.run import Run
from rolecall.training.trainer import Trainer

console = Console()


class Stop:
    """Ends a run from another thread, as Ctrl-C ends one in the main thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._end: Callable[[], object] | None = None
        self._told = False

    def now(self) -> None:
        with self._lock:
            self._told = True
            if self._end is not None:
                self._end()

    def ends(self, end: Callable[[], object]) -> None:
        """What stops the run, which is called at once if it was told to stop before."""
        with self._lock:
            self._end = end
            if self._told:
                end()

    def over(self) -> None:
        """The run has come to its end: there is nothing to stop any more."""
        with self._lock:
            self._end = None


def train(
    source: str,
    overrides: list[str],
    *,
    output: Path | None,
    resume: bool,
    allow_changes: bool = False,
    stop: Stop | None = None,
) -> dict[str, Any]:
    """Train until the last step; a run folder as `source` continues that run. Returns the summary.

    Raises RunFailedError where nothing was trained or most episodes failed, and StoppedError
    where the process was told to end.
    """
    with terminal.notices(console):
        path = Path(source)
        if is_run(path):
            folder = RunFolder.existing(path)
            plan = load_plan(folder.config, overrides)
        else:
            plan = load_plan(find(source), overrides)
            folder = _folder(plan.config, path.stem, output=output, resume=resume)
        config = plan.config
        folder.check(config, allow_changes=allow_changes)
        if _is_finished(folder, config):
            console.print(
                f"{folder.path} is finished: {config.trainer.steps} steps", soft_wrap=True
            )
            return _summary(folder, config)
        console.print(agents_table(agents_of(plan)))
        found = _to_the_end(plan, folder, allow_changes=allow_changes, stop=stop or Stop())
        console.print(f"Wrote {folder.path}: report.html, curves.png, summary.json", soft_wrap=True)
        summary.check_trained(found, folder.read_metrics())
        return found


def _to_the_end(
    plan: Plan, folder: RunFolder, *, allow_changes: bool, stop: Stop
) -> dict[str, Any]:
    """The summary. On a cluster the run is built again when ranks of a learner are lost; it goes on
    from its last checkpoint, with the episodes that it has journaled.
    """
    config, restarts = plan.config, 0
    while True:
        done, run = folder.num_steps(), None
        try:
            run = build(plan)
            with running(run), folder.started(config, allow_changes=allow_changes):
                with logged(folder.log):
                    _train(plan, run, folder, stop=stop)
                return _summary(folder, config)
        except RankError as error:
            restarts = 1 if folder.num_steps() > done else restarts + 1
            unbuilt = run is None and error.raised  # others would raise the same
            if unbuilt or restarts > _most_restarts(config):
                raise
            console.print(f"{error}. The run is started again", soft_wrap=True, highlight=False)
            plan = validate(config)


def _most_restarts(config: Config) -> int:
    return config.cluster.restarts if isinstance(config.cluster, RayClusterConfig) else 0


def _train(plan: Plan, run: Run, folder: RunFolder, *, stop: Stop) -> None:
    config = run.config
    trackers = [tracker.make(folder.path) for tracker in plan.trackers]
    with terminal.LiveTable(
        list(config.team),
        total_steps=config.trainer.steps,
        episodes=folder.episode_file,
        console=console,
    ) as table:
        trainer = Trainer(run, folder, display=table, trackers=trackers)
        try:
            asyncio.run(_until_told_to_end(trainer, stop))
        except (KeyboardInterrupt, StoppedError):
            kept = f"saved step {trainer.saved}" if trainer.saved > 0 else "saved no step"
            again = shlex.join(["rolecall", "train", str(folder.path)])
            console.print(f"Stopped and {kept}. Continue with: {again}", soft_wrap=True)
            raise


async def _until_told_to_end(trainer: Trainer, stop: Stop) -> None:
    """SIGTERM, which schedulers send, ends a run as Ctrl-C does: it saves first."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    told = False

    def end() -> None:
        nonlocal told
        told = True
        task.cancel()

    signals = threading.current_thread() is threading.main_thread()
    if signals:
        loop.add_signal_handler(signal.SIGTERM, end)
    stop.ends(lambda: loop.call_soon_threadsafe(end))
    try:
        await trainer.train()
    except asyncio.CancelledError:
        if told:
            raise StoppedError(signal.SIGTERM) from None
        raise
    finally:
        stop.over()
        if signals:
            loop.remove_signal_handler(signal.SIGTERM)


def _folder(config: Config, name: str, *, output: Path | None, resume: bool) -> RunFolder:
    chosen = output or (Path(config.output) if config.output else None)
    if chosen is not None:
        return RunFolder.existing(chosen) if resume else RunFolder(chosen)
    folder, number = RunFolder(Path("runs") / name), 1
    if resume:
        return RunFolder.existing(folder.path)
    while folder.path.exists() and not _continues(folder, config):
        number += 1
        folder = RunFolder(Path("runs") / f"{name}-{number}")
    return folder


def _continues(folder: RunFolder, config: Config) -> bool:
    """Whether an unnamed run would go on in this folder: same config, and not finished."""
    if not folder.config.is_file():
        return False
    try:
        changes = folder.changes(config)
    except ConfigError:  # it cannot be read, so it is no run to go on with
        return False
    same = all(run_folder.is_part(key, run_folder.UNNAMED_MAY_CHANGE) for key in changes)
    return same and not _is_finished(folder, config)


def _is_finished(folder: RunFolder, config: Config) -> bool:
    return folder.summary.is_file() and folder.num_steps() >= config.trainer.steps


def _summary(folder: RunFolder, config: Config) -> dict[str, Any]:
    records = folder.read_metrics()
    found = summary.summarise(records, seed=config.trainer.seed)
    report.write(folder)
    run_folder.write_aside(folder.summary, json.dumps(found, indent=2) + "\n")
    return found
