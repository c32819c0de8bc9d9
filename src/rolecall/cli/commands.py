"""What each command does, once its arguments are read. Heavy imports start here."""

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

from rolecall.agents.agent import Policy
from rolecall.config import registry
from rolecall.config.errors import ConfigError
from rolecall.config.schema import Config, Named, find, load
from rolecall.engines.scripted import ScriptedEngine
from rolecall.errors import InfrastructureError, StoppedError
from rolecall.monitor import curves, report, summary, terminal
from rolecall.monitor.comparison import TEST
from rolecall.rollout.episodes import Rollout, RolloutContext
from rolecall.rollout.evaluation import evaluate as evaluate_team
from rolecall.runtime.call_tree import task_factory
from rolecall.setup.algorithms import check_options
from rolecall.setup.build import assemble
from rolecall.setup.parts import make_agents, make_environment, make_tools, resolve_workflow
from rolecall.storage import checkpoint, run_folder
from rolecall.storage.episode_io import write_parquet
from rolecall.storage.log_file import logged
from rolecall.storage.run_folder import RunFolder
from rolecall.tiny.build import Size, build
from rolecall.tiny.tokenizer import fit
from rolecall.tools.use import check_kits
from rolecall.training import train_step
from rolecall.training.run import Run
from rolecall.training.trainer import Tracker, Trainer

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
        if _is_run(path):
            folder = RunFolder.existing(path)
            config = load(folder.config, overrides)
        else:
            config = load(find(source), overrides)
            folder = _folder(config, path.stem, output=output, resume=resume)
        folder.check(config, allow_changes=allow_changes)
        if _is_finished(folder, config):
            console.print(
                f"{folder.path} is finished: {config.trainer.steps} steps", soft_wrap=True
            )
            return _summary(folder, config)
        run = assemble(config)
        _check_tools(run)
        with folder.started(config, allow_changes=allow_changes):
            with logged(folder.log):
                _train(run, folder, stop=stop or Stop())
            found = _summary(folder, config)
        console.print(f"Wrote {folder.path}: report.html, curves.png, summary.json", soft_wrap=True)
        summary.check_trained(found, folder.read_metrics())
        return found


def _train(run: Run, folder: RunFolder, *, stop: Stop) -> None:
    config = run.config
    trackers = [make_tracker(named, folder.path) for named in config.trackers]
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
        finally:
            _close(run.context)


def _check_tools(run: Run) -> None:
    """Raises ConfigError where a tool or what the environment asks cannot start, before anything
    is played or written.
    """
    uses = {name: agent.tools for name, agent in run.context.agents.items() if agent.tools}
    environment, part = run.context.environment, next(iter(run.sampler.parts.values()))

    async def check() -> None:
        if hasattr(environment, "check"):
            try:
                await environment.check()
            except (InfrastructureError, OSError) as error:
                raise ConfigError(f"environment: {error}") from error
        await check_kits(uses, world=lambda: environment.open(part[0], seed=0))

    asyncio.run(check())


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


def _is_run(path: Path) -> bool:
    """Whether an argument means a run folder, there or not, and not a recipe or a config."""
    return path.is_dir() or (not path.exists() and len(path.parts) > 1 and path.suffix == "")


def evaluate(source: str, overrides: list[str], *, checkpoint_name: str) -> dict[str, Any]:
    """Score a run's checkpoint, or a config's untrained team.

    What a run's checkpoint said and scored is kept in the run's folder.
    """
    path = Path(source)
    folder = RunFolder.existing(path) if _is_run(path) else None
    config = load(folder.config if folder else find(source), overrides)
    if config.evaluation.tasks == 0:
        raise ConfigError("evaluation.tasks: 0 leaves nothing to evaluate")
    run = assemble(config)
    _check_tools(run)
    saved = _checkpoint(folder, checkpoint_name) if folder else None
    if saved:
        run.restore(saved)
    try:
        found, rollout = asyncio.run(_evaluate(run))
        found = {"split": TEST, **found}
    finally:
        _close(run.context)
    if folder and saved:
        step = checkpoint.step_of(saved)
        _keep(folder, {"step": step, "overrides": overrides, **found}, rollout)
    name = _told_as(checkpoint_name, folder) if folder else "untrained"
    terminal.show_evaluation({"when": name, **found})
    return found


def _told_as(name: str, folder: RunFolder) -> str:
    """`best` is called by the split on which it was chosen."""
    if name != checkpoint.BEST:
        return name
    chosen = summary.best(folder.read_metrics())
    return summary.best_name(chosen["chosen_on"] if chosen else TEST)


async def _evaluate(run: Run) -> tuple[dict[str, Any], Rollout]:
    asyncio.get_running_loop().set_task_factory(task_factory)
    options = run.config.evaluation
    await train_step.publish(run, list(run.learners))
    return await evaluate_team(
        run.context, run.test, samples=options.samples, k=options.pass_k, greedy=options.greedy
    )


def _keep(folder: RunFolder, record: dict[str, Any], rollout: Rollout) -> None:
    """Another evaluation of the same checkpoint takes the place of the one before."""
    step = record["step"]
    folder.evaluated.mkdir(exist_ok=True)
    episodes = [*rollout.episodes, *rollout.unused]
    write_parquet(folder.evaluation_file(step), episodes, step=step)
    text = json.dumps(record, indent=2) + "\n"
    run_folder.write_aside(folder.evaluation_file(step, suffix="json"), text)


def build_tiny(
    sources: list[str],
    overrides: list[str],
    *,
    output: Path,
    size: Size,
    seed: int,
) -> None:
    """Make a model folder from what the teams of some recipes demonstrate."""
    contexts = [demonstrating(load(find(source), overrides)) for source in sources]
    try:
        build(output, contexts, size=size, seed=seed, log=console.print)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    finally:
        for context in contexts:
            _close(context)
    console.print(f"Wrote {output}; use it as base: {output}")


def demonstrating(config: Config) -> RolloutContext:
    """The team without its models: its workflow says what it says."""
    flow = resolve_workflow(config.workflow)
    nobody = fit([], size=300, tags=())
    silent = ScriptedEngine(nobody, lambda request: "")
    policies = {name: Policy(name, nobody, silent) for name in config.policies}
    return RolloutContext(
        agents=make_agents(config, flow, policies, make_tools(config)),
        workflow=flow,
        options=check_options("workflow", config.workflow, flow.play, skip=3),
        environment=make_environment(config),
        rewards={},
    )


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


def make_tracker(named: Named, folder: Path) -> Tracker:
    """Raises ConfigError for unknown options and for a package that is not installed."""
    kind = registry.resolve("tracker", named.name, key="trackers")
    tracker: Tracker = kind(folder, **check_options("trackers", named, kind, skip=1))
    return tracker


def _is_finished(folder: RunFolder, config: Config) -> bool:
    return folder.summary.is_file() and folder.num_steps() >= config.trainer.steps


def _summary(folder: RunFolder, config: Config) -> dict[str, Any]:
    records = folder.read_metrics()
    found = summary.summarise(records, seed=config.trainer.seed)
    curves.draw(records, folder.path / "curves.png")
    report.write(folder)
    run_folder.write_aside(folder.summary, json.dumps(found, indent=2) + "\n")
    return found


def _checkpoint(folder: RunFolder, name: str) -> Path:
    """Raises ConfigError where the run has no such checkpoint, CheckpointError if it is damaged."""
    found = (
        checkpoint.pointed(folder.checkpoints, name)
        if name in (checkpoint.LATEST, checkpoint.BEST)
        else folder.checkpoints / name
    )
    if found not in checkpoint.saved(folder.checkpoints):
        there = ", ".join(sorted(path.name for path in checkpoint.saved(folder.checkpoints)))
        raise ConfigError(f"{folder.path} has no checkpoint {name!r} (it has: {there or 'none'})")
    if wrong := checkpoint.damage(found):
        raise checkpoint.CheckpointError(f"{found}: {wrong}")
    return found


def _close(context: RolloutContext) -> None:
    close = getattr(context.environment, "close", None)
    if close is not None:
        asyncio.run(close())
