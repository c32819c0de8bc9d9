"""Plays the arms that a run's own weights can play: its team, variants of it, each agent alone."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from rolecall.agents.agent import Agent, Policy
from rolecall.algorithms.best_of import task_key
from rolecall.core.errors import ConfigError
from rolecall.core.types import Episode, Task
from rolecall.data.writing import write_rows
from rolecall.explain.worth import Arm, Kind
from rolecall.rollout.episodes import RolloutContext
from rolecall.rollout.group_player import Collection
from rolecall.runs.first_weights import load_first_weights
from rolecall.runs.services import running
from rolecall.runs.worth.arms import (
    LONE_WORKFLOW,
    ArmPlayer,
    Arms,
    choose_lone_workflow,
    make_lone_context,
    silence,
)
from rolecall.runtime.call_tree import task_factory
from rolecall.runtime.progress import activity
from rolecall.setup.build import build
from rolecall.setup.plan import Plan
from rolecall.storage import checkpoint
from rolecall.storage.run_folder import RunFolder
from rolecall.training import train_step
from rolecall.training.run import Run

IMITATES = "one agent that imitates the team"
DEMONSTRATIONS = "demonstrations.jsonl"
STEPS = 8  # of training tasks whose episodes are imitated


@dataclass(frozen=True, slots=True)
class Played:
    """The arms of the run's own weights, and what its counterparts need of them."""

    arms: Arms
    agent: str  # the trained agent that is best alone
    steps: int  # that the team was trained for
    workflow: str  # in which one agent works
    demonstrations: Path | None  # the team's right answers to training tasks
    player: ArmPlayer


def play_run(
    plan: Plan, folder: RunFolder, checkpoint_name: str, file: Path | None, *, answers: int
) -> Played:
    """Play the arms that need no training; `file` is for demonstrations, where there are any."""
    with ExitStack() as stack:
        saved = stack.enter_context(checkpoint.held(folder, checkpoint_name))
        run, first = build(plan), build(plan)
        for one in (run, first):
            stack.enter_context(running(one))
        run.restore(saved)
        load_first_weights(first, folder)
        player = ArmPlayer.for_run(plan.config, run.test, answers=answers)
        steps = checkpoint.checkpoint_step(saved)
        return asyncio.run(_play(run, first, player, file, steps=steps))


async def _play(
    run: Run, first: Run, player: ArmPlayer, file: Path | None, *, steps: int
) -> Played:
    asyncio.get_running_loop().set_task_factory(task_factory)
    for one in (run, first):
        await train_step.publish(one, list(one.learners))
    context = replace(run.context, player=None)
    team = await player.play("the team", context, kind="team")
    arms = Arms(team)

    async def play(name: str, changed: RolloutContext, kind: Kind = "variant") -> None:
        with arms.attempt(name):
            arms.others.append(await player.play(name, changed, kind=kind))

    names = list(context.agents)
    alone: list[str] = []
    trained = [name for name in names if run.config.team[name].policy in run.learners]
    for name in names:
        others = [other for other in names if other != name]
        if not any(run.config.team[name] == run.config.team[other] for other in alone):
            alone.append(name)
            await play(name_alone(name), make_lone_context(context, context.agents[name]), "single")
        silent = f"{name} in a silent team"
        await play(silent, silence(context, others), "single")
        if len(others) > 1:
            await play(f"without {name}", silence(context, [name]))
        else:
            arms.others += [
                Arm(f"without {others[0]}", "variant", arm.attempts)
                for arm in arms.others
                if arm.name == silent
            ]
    for name in trained:
        base = first.context.agents[name].policy
        await play(f"{name} as it began", _replace_policies(context, {name: base}))
    owners = {run.config.team[name].policy: name for name in trained}
    for name in owners.values() if len(owners) > 1 else ():
        merged = dict.fromkeys(trained, context.agents[name].policy)
        await play(f"all with {name}'s weights", _replace_policies(context, merged))
    trainable = [name for name in alone if name in trained]
    agent = find_best_alone(arms, trainable or alone)
    workflow = choose_lone_workflow(context)
    written = None
    if file is not None:
        with arms.attempt(IMITATES):
            await _write_demonstrations(run, context.agents[agent], workflow, file)
            written = file
    return Played(arms, agent, steps, workflow, written, player)


def name_alone(agent: str) -> str:
    """Return the name of the arm of an agent without a team."""
    return f"{agent} alone"


def find_best_alone(arms: Arms, names: list[str]) -> str:
    """Return the agent with the highest score alone; the first of equal ones."""
    scores = {arm.name: fmean(arm.means().values()) for arm in arms.others if arm.attempts}
    return max(names, key=lambda name: scores.get(name_alone(name), 0.0))


def _replace_policies(context: RolloutContext, policies: Mapping[str, Policy]) -> RolloutContext:
    """Return the team in which these agents speak with other policies."""
    agents = {
        name: replace(agent, policy=policies[name]) if name in policies else agent
        for name, agent in context.agents.items()
    }
    return replace(context, agents=agents)


async def _write_demonstrations(run: Run, agent: Agent, workflow: str, file: Path) -> None:
    """Write the team's best answer to each training task as a demonstration for one agent.

    Raises ConfigError where the work of a team is more than the answer that it ends with.
    """
    if workflow != LONE_WORKFLOW or agent.tools is not None:
        raise ConfigError("its work is more than the words of its answer: it acts in the world")
    tasks: dict[tuple[str, str], Task] = {}
    for step in range(1, STEPS + 1):
        tasks |= {(task.source, task.id): task for task in run.sampler.sample(step)}
    with activity("playing the team on training tasks"):
        playing = Collection(run.context, list(tasks.values()), step="worth", group_size=2)
        await playing.wait()
    best: dict[str, Episode] = {}
    for episode in playing.take().episodes:
        key = task_key(episode)
        if key not in best or (episode.headline or 0.0) > (best[key].headline or 0.0):
            best[key] = episode
    rows = [
        {
            "id": episode.id,
            "task": episode.task.id,
            "prompt": [
                {"role": message.role, "content": message.content}
                for message in agent.messages((episode.task.prompt,), earlier=[])
            ],
            "completion": episode.answer,
        }
        for episode in best.values()
        if (episode.headline or 0.0) > 0.0 and not episode.is_truncated
    ]
    if not rows:
        raise ConfigError("the team answered no training task right")
    write_rows(file, rows, columns={})
