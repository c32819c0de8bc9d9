"""What each command does, once its arguments are read. Heavy imports start here."""

from __future__ import annotations

import asyncio
import json
import logging
import shlex
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from rolecall import checkpoint, learning, registry, runs
from rolecall.agents import Policy
from rolecall.assembly import Run, assemble
from rolecall.config import Config, Named, find, load
from rolecall.config_errors import ConfigError
from rolecall.credit import check_options
from rolecall.engines.scripted import ScriptedEngine
from rolecall.evaluate import evaluate as evaluate_team
from rolecall.monitor import curves, report, summary, terminal
from rolecall.parts import make_agents, make_environment, make_tools, resolve_workflow
from rolecall.rollout import Stage
from rolecall.runs import RunFolder
from rolecall.scope import task_factory
from rolecall.tiny.build import Size, build
from rolecall.tiny.tokenizer import fit
from rolecall.trainer import Tracker, Trainer

console = Console()


def train(
    source: str, overrides: list[str], *, output: Path | None, resume: bool
) -> dict[str, Any]:
    """Train until the last step. Returns the summary."""
    config = load(find(source), overrides)
    folder = _folder(config, Path(source).stem, output=output, resume=resume)
    if _is_finished(folder, config):
        console.print(f"{folder.path} is finished: {config.trainer.steps} steps")
        return _summary(folder, config)
    run = assemble(config)
    folder.start(config)
    logging.basicConfig(
        filename=folder.log,
        level=logging.INFO,
        format="%(asctime)s %(levelname)s %(message)s",
        force=True,
    )
    trackers = [make_tracker(named, folder.path) for named in config.trackers]
    with terminal.LiveTable(list(config.team), total_steps=config.trainer.steps) as table:
        trainer = Trainer(run, folder, display=table, trackers=trackers)
        try:
            asyncio.run(trainer.train())
        except KeyboardInterrupt:
            again = ["rolecall", "train", source, *overrides, "--output", str(folder.path)]
            console.print(
                f"Stopped after step {trainer.done} and saved. Continue with: "
                f"{shlex.join([*again, '--resume'])}",
                soft_wrap=True,
            )
            raise
        finally:
            _close(run.stage)
    found = _summary(folder, config)
    console.print(f"Wrote {folder.path}: report.html, curves.png, summary.json", soft_wrap=True)
    return found


def evaluate(source: str, overrides: list[str], *, checkpoint_name: str) -> dict[str, Any]:
    """Score a run's checkpoint, or a config's untrained team."""
    path = Path(source)
    is_run = path.is_dir() or (not path.exists() and "/" in source and path.suffix == "")
    folder = RunFolder.existing(path) if is_run else None
    config = load(folder.config if folder else find(source), overrides)
    if config.evaluation.tasks == 0:
        raise ConfigError("evaluation.tasks: 0 leaves nothing to evaluate")
    run = assemble(config)
    if folder:
        run.restore(_checkpoint(folder, checkpoint_name))
    try:
        found = asyncio.run(_evaluate(run))
    finally:
        _close(run.stage)
    terminal.show_evaluation({"when": checkpoint_name if folder else "untrained", **found})
    return found


async def _evaluate(run: Run) -> dict[str, Any]:
    asyncio.get_running_loop().set_task_factory(task_factory)
    options = run.config.evaluation
    await learning.publish(run, list(run.learners))
    found, _ = await evaluate_team(
        run.stage, run.test, samples=options.samples, k=options.k, greedy=options.greedy
    )
    return found


def build_tiny(
    sources: list[str],
    overrides: list[str],
    *,
    output: Path,
    size: Size,
    seed: int,
) -> None:
    """Make a model folder from what the teams of some recipes demonstrate."""
    stages = [demonstrating(load(find(source), overrides)) for source in sources]
    try:
        build(output, stages, size=size, seed=seed, log=console.print)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    finally:
        for stage in stages:
            _close(stage)
    console.print(f"Wrote {output}; use it as base: {output}")


def demonstrating(config: Config) -> Stage:
    """The team without its models: its workflow says what it says."""
    flow = resolve_workflow(config.workflow)
    nobody = fit([], size=300, tags=())
    silent = ScriptedEngine(nobody, lambda request: "")
    policies = {name: Policy(name, nobody, silent) for name in config.policies}
    return Stage(
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
    saved = yaml.safe_load(folder.config.read_text())
    return not runs.differences(saved, runs.resolved(config)) and not _is_finished(folder, config)


def make_tracker(named: Named, folder: Path) -> Tracker:
    """Raises ConfigError for unknown options and for a package that is not installed."""
    kind = registry.resolve("tracker", named.name, key="trackers")
    tracker: Tracker = kind(folder, **check_options("trackers", named, kind, skip=1))
    return tracker


def _is_finished(folder: RunFolder, config: Config) -> bool:
    if not folder.summary.is_file():
        return False
    folder.start(config)  # the folder must belong to this config
    return True


def _summary(folder: RunFolder, config: Config) -> dict[str, Any]:
    records = folder.read_metrics()
    found = summary.summarise(records, seed=config.trainer.seed)
    curves.draw(records, folder.path / "curves.png")
    report.write(folder)
    runs.write_aside(folder.summary, json.dumps(found, indent=2) + "\n")
    return found


def _checkpoint(folder: RunFolder, name: str) -> Path:
    if name in (checkpoint.LATEST, checkpoint.BEST):
        found = checkpoint.pointed(folder.checkpoints, name)
    else:
        found = folder.checkpoints / name
        found = found if (found / "state.json").is_file() else None
    if found is None:
        there = sorted(path.name for path in folder.checkpoints.glob("step-*"))
        raise ConfigError(f"{folder.path} has no checkpoint {name!r} (it has: {', '.join(there)})")
    return found


def _close(stage: Stage) -> None:
    close = getattr(stage.environment, "close", None)
    if close is not None:
        asyncio.run(close())
