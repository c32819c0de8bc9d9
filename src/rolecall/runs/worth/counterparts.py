"""Trains and plays what could take a team's place: one agent, or a team with other weights."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path

from rolecall.config.schema import Config
from rolecall.core.errors import ConfigError
from rolecall.engines.prices import find_prices
from rolecall.explain.worth import Arm, Kind
from rolecall.runs.finished import is_finished
from rolecall.runs.first_weights import find_carried, load_first_weights
from rolecall.runs.one_run import finish, make_room
from rolecall.runs.services import running
from rolecall.runs.stop import Stop
from rolecall.runs.worth.arms import ArmPlayer
from rolecall.runs.worth.counterpart_configs import is_shared, make_alone, make_own, make_shared
from rolecall.runs.worth.own_weights import IMITATES, Played, name_alone
from rolecall.runtime.call_tree import task_factory
from rolecall.setup.build import build
from rolecall.setup.plan import Plan, validate
from rolecall.storage import checkpoint
from rolecall.storage.run_folder import RunFolder
from rolecall.training import train_step

TRAINED_ALONE = "one agent trained alone"


def play_counterparts(plan: Plan, folder: RunFolder, kept: Path, played: Played) -> None:
    """Train each counterpart in a folder of `kept`, and add its arm.

    One agent trained alone samples about as many tokens as the team did in its training.
    """
    config, arms = plan.config.model_copy(deep=True), played.arms
    config.trainer.steps = played.steps
    make_lone = partial(make_alone, config, played.agent, workflow=played.workflow)
    with arms.attempt(TRAINED_ALONE):
        name = name_alone(played.agent)
        lone = next((arm for arm in arms.others if arm.name == name), None)
        if lone is None:
            raise ConfigError(f"{name} could not be played")
        ratio = arms.team.spend("tokens") / lone.spend("tokens")
        alone = make_lone(steps=max(1, round(config.trainer.steps * ratio)))
        arms.others.append(
            train_and_play(TRAINED_ALONE, alone, kept / "alone", folder, played.player, "single")
        )
    if played.demonstrations is not None:
        with arms.attempt(IMITATES):
            student = make_lone(steps=config.trainer.steps, rows=played.demonstrations)
            arms.others.append(
                train_and_play(IMITATES, student, kept / "student", folder, played.player, "single")
            )
    name = "own weights for each" if is_shared(config) else "one set of weights for all"
    with arms.attempt(name):
        if find_carried(folder) is not None:
            raise ConfigError("the run began with what an earlier stage trained of each policy")
        other = make_own(config) if is_shared(config) else make_shared(config)
        arms.others.append(
            train_and_play(name, other, kept / "weights", folder, played.player, "variant")
        )


def train_and_play(
    name: str, config: Config, output: Path, folder: RunFolder, player: ArmPlayer, kind: Kind
) -> Arm:
    """Train a counterpart from where the run in `folder` began, and play it.

    What an earlier call has trained is used again, as far as it is the same training.
    """
    plan, counterpart = validate(config), choose_folder(output, config)
    player = replace(player, prices=find_prices(config) if player.prices else {})
    if not is_finished(counterpart, config):
        begin = partial(load_first_weights, folder=folder)
        again = ["worth", str(folder.path)]
        finish(plan, counterpart, allow_changes=True, stop=Stop(), begin=begin, again=again)
        make_room()
    with ExitStack() as stack:
        saved = stack.enter_context(checkpoint.held(counterpart, checkpoint.LATEST))
        run = build(validate(config))
        stack.enter_context(running(run))
        run.restore(saved)

        async def play() -> Arm:
            asyncio.get_running_loop().set_task_factory(task_factory)
            await train_step.publish(run, list(run.learners))
            context = replace(run.context, rewards={}) if kind == "single" else run.context
            return await player.play(name, context, kind=kind)

        return asyncio.run(play())


def choose_folder(path: Path, config: Config) -> RunFolder:
    """Return the first of `path`, `path-2`, ... that has no other run and none of more steps."""
    folder, number = RunFolder(path), 1
    while True:
        try:
            folder.check(config)
        except ConfigError:
            number += 1
            folder = RunFolder(path.with_name(f"{path.name}-{number}"))
        else:
            return folder
