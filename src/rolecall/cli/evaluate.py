"""`rolecall eval`: scores a checkpoint of a run, or the untrained team of a config."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from rich.console import Console

from rolecall.cli.run_paths import is_run
from rolecall.cli.services import running
from rolecall.config.errors import ConfigError
from rolecall.config.load import find
from rolecall.monitor import summary, terminal
from rolecall.monitor.comparison import TEST
from rolecall.rollout.episodes import Rollout
from rolecall.rollout.evaluation import evaluate as evaluate_team
from rolecall.runtime.call_tree import task_factory
from rolecall.setup.build import build
from rolecall.setup.plan import load_plan
from rolecall.storage import checkpoint, run_folder
from rolecall.storage.episode_io import write_parquet
from rolecall.storage.run_folder import RunFolder
from rolecall.training import train_step
from rolecall.training.run import Run

console = Console()


def evaluate(source: str, overrides: list[str], *, checkpoint_name: str) -> dict[str, Any]:
    """Score a run's checkpoint, or a config's untrained team.

    What a run's checkpoint said and scored is kept in the run's folder.
    """
    path = Path(source)
    folder = RunFolder.existing(path) if is_run(path) else None
    plan = load_plan(folder.config if folder else find(source), overrides)
    if plan.config.evaluation.tasks == 0:
        raise ConfigError("evaluation.tasks: 0 leaves nothing to evaluate; write at least 1")
    run = build(plan)
    saved = checkpoint.named(folder, checkpoint_name) if folder else None
    with running(run):
        if saved:
            run.restore(saved)
        found, rollout = asyncio.run(_evaluate(run))
    found = {"split": TEST, **found}
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
    await train_step.publish(run, list(run.learners))
    return await evaluate_team(run.context, run.test, run.config.evaluation)


def _keep(folder: RunFolder, record: dict[str, Any], rollout: Rollout) -> None:
    """Another evaluation of the same checkpoint takes the place of the one before."""
    step = record["step"]
    folder.evaluated.mkdir(exist_ok=True)
    episodes = [*rollout.episodes, *rollout.unused]
    write_parquet(folder.evaluation_file(step), episodes, step=step)
    text = json.dumps(record, indent=2) + "\n"
    run_folder.write_aside(folder.evaluation_file(step, suffix="json"), text)
