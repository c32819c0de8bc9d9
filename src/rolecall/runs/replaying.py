"""Opens a run whose recorded episodes are to be replayed with its weights."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from rolecall.config.schema import Config
from rolecall.core.errors import ConfigError
from rolecall.core.interfaces.environment import ENDLESS
from rolecall.core.types import Episode, Task
from rolecall.explain.turns import find_episode
from rolecall.monitor import terminal
from rolecall.runs.first_weights import load_first_weights
from rolecall.runs.local_plan import load_local_plan
from rolecall.runs.services import running
from rolecall.runtime.call_tree import task_factory
from rolecall.runtime.consoles import PlainConsole
from rolecall.setup.build import build
from rolecall.setup.plan import Plan
from rolecall.storage import checkpoint
from rolecall.storage.run_folder import RunFolder
from rolecall.training import train_step
from rolecall.training.run import Run

FIRST = "first"
# Tools that change nothing outside of an episode.
REPEATABLE = frozenset({"calculator", "files", "python", "search", "world"})


@dataclass(frozen=True, slots=True)
class Weights:
    """The checkpoint that stands for the weights that sampled an episode."""

    name: str | None  # None: the weights that the run began with
    is_exact: bool
    is_chosen: bool = False  # by whoever asked

    def describe(self, step: int) -> str:
        """Return a sentence about which weights are played."""
        name = (
            "the weights that the run began with"
            if self.name is None
            else f"checkpoint {self.name}"
        )
        if self.is_exact:
            return f"{name}, which sampled it"
        if self.is_chosen:
            return f"{name}; step {step} was sampled by those of step {step - 1}"
        return (
            f"{name}; step {step} was sampled by those of step {step - 1}, which are not there "
            f"(trainer.pin=[{step - 1}] keeps them)"
        )


@dataclass(frozen=True, slots=True)
class Recording:
    """A recorded episode, and the run with the weights that are to replay it."""

    run: Run
    plan: Plan
    folder: RunFolder
    episode: Episode  # with the run's own task
    weights: Weights

    @property
    def tools(self) -> list[str]:
        """Names of the tools that each replay calls again."""
        used = [agent.tools.use for agent in self.plan.config.team.values() if agent.tools]
        return sorted({tool.name for tools in used for tool in tools})


@contextmanager
def open_run(plan: Plan, folder: RunFolder, weights: Weights) -> Iterator[Run]:
    """Build the run of a folder with some of its weights, and end it.

    Raises ConfigError where there is no such checkpoint.
    """
    with ExitStack() as stack:
        stack.enter_context(terminal.notices(PlainConsole(stderr=True)))
        saved = None
        if weights.name is not None:
            saved = stack.enter_context(checkpoint.held(folder, weights.name))
        run = build(plan)
        stack.enter_context(running(run))
        load_first_weights(run, folder)
        if saved is not None:
            run.restore(saved)
        yield run


@contextmanager
def open_recording(
    path: Path,
    name: str,
    *,
    step: int | None,
    weights: str | None = None,
    calls_tools: bool,
    overrides: list[str],
    command: str,
) -> Iterator[Recording]:
    """Open the run of an episode, which `name` or one of its turns names.

    `weights`: latest, best, step-N or first; by default those that sampled it, or the nearest ones.
    With `calls_tools` tools that act outside of an episode are called again. Raises ConfigError
    where there is no such episode, checkpoint or task, or where it cannot be replayed.
    """
    folder = RunFolder.existing(path)
    episode = find_episode(folder, name, step=step)
    plan = load_local_plan(folder, overrides, command=f"{command} replays")
    if not calls_tools:
        check_tools(plan.config, episode.id)
    chosen = choose_weights(folder, episode.step or 1, weights)
    with open_run(plan, folder, chosen) as run:
        episode.task = find_task(run, episode.task, step=episode.step or 1)
        yield Recording(run, plan, folder, episode, chosen)


async def begin_replays(*runs: Run) -> None:
    """Give the engines of these runs their weights, inside of the loop that plays."""
    asyncio.get_running_loop().set_task_factory(task_factory)
    for run in runs:
        await train_step.publish(run, list(run.learners))


def check_tools(config: Config, episode: str) -> None:
    """Raise ConfigError for tools that may act outside of an episode."""
    for name, agent in config.team.items():
        used = agent.tools.use if agent.tools is not None else []
        outside = [tool.name for tool in used if tool.name not in REPEATABLE]
        if outside:
            raise ConfigError(
                f"each replay calls the tools of {name} again, and {', '.join(outside)} may act "
                "outside of the episode; add --call-tools if that does no harm. "
                f"`rolecall show RUN --why {episode}` explains its credit without a replay"
            )


def choose_weights(folder: RunFolder, step: int, name: str | None = None) -> Weights:
    """Return the weights of that name, else the checkpoint of the step before or the nearest one.

    `name`: latest, best, step-N, or `first` for the weights that the run began with.
    """
    if name is not None:
        exact = FIRST if step == 1 else f"step-{step - 1}"
        return Weights(None if name == FIRST else name, name == exact, is_chosen=True)
    if step == 1:
        return Weights(None, is_exact=True)
    steps = sorted(map(checkpoint.checkpoint_step, checkpoint.list_checkpoints(folder.checkpoints)))
    if not steps:
        return Weights(None, is_exact=False)
    nearest = min(steps, key=lambda one: (abs(one - (step - 1)), one))
    return Weights(f"step-{nearest}", is_exact=nearest == step - 1)


def find_task(run: Run, task: Task, *, step: int) -> Task:
    """Return the run's own task of this id: a file of episodes keeps its answer as text alone.

    Of endless tasks the number at the end of the id is tried, and what the step samples. Raises
    ConfigError where the run has no such task.
    """
    candidates: list[Task] = [*run.test, *run.validation]
    number = re.search(r"\d+$", task.id, re.ASCII)
    for tasks in run.sampler.parts.values():
        if len(tasks) < ENDLESS:
            candidates += tasks
        elif number is not None and int(number[0]) < len(tasks):
            candidates.append(tasks[int(number[0])])
    candidates += run.sampler.sample(step)
    for candidate in candidates:
        if (candidate.id, candidate.source) == (task.id, task.source):
            return candidate
    raise ConfigError(
        f"the environment has no task {task.id!r} any more, so that the episode cannot be "
        "replayed; give it the data that the run had"
    )
