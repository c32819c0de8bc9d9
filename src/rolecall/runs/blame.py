"""`rolecall blame`: which turn of a run's episode decided it, found by replaying the episode."""

from __future__ import annotations

import asyncio
import re
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from rolecall.agents.agent import Policy
from rolecall.config.schema import Config
from rolecall.core.errors import ConfigError
from rolecall.core.interfaces.environment import ENDLESS
from rolecall.core.json_types import Record
from rolecall.core.types import Episode, Task
from rolecall.explain.blame import Blame, ReplayError, blame_episode
from rolecall.explain.blame_table import print_blame
from rolecall.explain.turns import find_episode
from rolecall.monitor import terminal
from rolecall.rollout.episodes import continue_episode
from rolecall.runs.first_weights import load_first_weights
from rolecall.runs.local_plan import load_local_plan
from rolecall.runs.services import running
from rolecall.runtime.call_tree import task_factory
from rolecall.runtime.consoles import PlainConsole
from rolecall.runtime.progress import activity
from rolecall.setup.build import build
from rolecall.storage import checkpoint
from rolecall.storage.run_folder import RunFolder
from rolecall.training import train_step
from rolecall.training.run import Run

# Tools that change nothing outside of an episode.
REPEATABLE = frozenset({"calculator", "files", "python", "search", "world"})


@dataclass(frozen=True, slots=True)
class Weights:
    """The checkpoint that stands for the weights that sampled an episode."""

    name: str | None  # None: the weights that the run began with
    is_exact: bool

    def describe(self, step: int) -> str:
        """Return a sentence about which weights are played."""
        name = (
            "the weights that the run began with"
            if self.name is None
            else f"checkpoint {self.name}"
        )
        if self.is_exact:
            return f"{name}, which sampled it"
        return (
            f"{name}; step {step} was sampled by those of step {step - 1}, which are not there "
            f"(trainer.pin=[{step - 1}] keeps them)"
        )


def blame(
    path: Path,
    name: str,
    *,
    step: int | None,
    draws: int,
    calls_tools: bool,
    overrides: list[str],
    quiet: bool,
) -> Record:
    """Print and return which turn decided an episode, and what each turn and agent gained.

    `name` is the id of an episode of a training step, `best` or `worst`. With `calls_tools` tools
    that act outside of an episode are called again. Raises ConfigError where there is no such
    episode, or where it cannot be replayed.
    """
    folder = RunFolder.existing(path)
    episode = find_episode(folder, name, step=step)
    plan = load_local_plan(folder, overrides, command="blame replays")
    if not calls_tools:
        check_tools(plan.config, episode.id)
    weights = choose_weights(folder, episode.step or 1)
    with ExitStack() as stack:
        stack.enter_context(terminal.notices(PlainConsole(stderr=True)))
        run, untrained = build(plan), build(plan)
        for one in (run, untrained):
            stack.enter_context(running(one))
            load_first_weights(one, folder)
        if weights.name is not None:
            with checkpoint.held(folder, weights.name) as saved:
                run.restore(saved)
        episode.task = find_task(run, episode.task, step=episode.step or 1)
        with activity(f"replaying {episode.id}"):
            result = asyncio.run(_blame(run, untrained, episode, draws))
    result.weights = weights.describe(episode.step or 1)
    print_blame(result, PlainConsole(quiet=quiet))
    culprit, saviour = result.culprit, result.saviour
    return asdict(result) | {
        "culprit": culprit and culprit.turn,
        "saviour": saviour and saviour.turn,
    }


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


def choose_weights(folder: RunFolder, step: int) -> Weights:
    """Return the checkpoint of the step before, or else the nearest one that is there."""
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


async def _blame(run: Run, untrained: Run, episode: Episode, draws: int) -> Blame:
    asyncio.get_running_loop().set_task_factory(task_factory)
    for one in (run, untrained):
        await train_step.publish(one, list(one.learners))
    trained = {agent for agent, a in run.context.agents.items() if a.policy.name in run.learners}
    base: dict[str, Policy] = {name: untrained.context.agents[name].policy for name in trained}
    try:
        return await blame_episode(
            episode,
            partial(continue_episode, run.context),
            draws=draws,
            base=base,
            concurrency=run.context.concurrency,
        )
    except ReplayError as error:
        raise ConfigError(
            f"{episode.id} cannot be replayed: {error}; `rolecall show RUN --why {episode.id}` "
            "explains its credit without a replay"
        ) from error
