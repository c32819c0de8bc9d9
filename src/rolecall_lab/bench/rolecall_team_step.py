"""Measures how fast we do a step of two agents with weights of their own."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from rolecall.agents.team import Team
from rolecall.config.schema import Config
from rolecall.core.interfaces.environment import World
from rolecall.core.types import Episode, Task, Turn
from rolecall.workflows.base import workflow
from rolecall_lab.bench import Measure
from rolecall_lab.bench.grpo_step import StepSize
from rolecall_lab.bench.rolecall_step import Numbers, make_config, measure_steps
from rolecall_lab.bench.small_models import random_model
from rolecall_lab.bench.team_step import AGENTS, joint_reward


class JointNumbers(Numbers):
    """Tasks are random numbers; what both agents say about them is worth its mean."""

    def open(self, task: Task, *, seed: int) -> World:
        return JointWorld()


class JointWorld(World):
    async def score(self, episode: Episode) -> dict[str, float]:
        return {"team": joint_reward([turn.ids[1].tolist() for turn in episode.turns])}


@workflow
async def side_by_side(team: Team, task: Task, world: World) -> Turn:
    """Let every agent answer the task at the same time."""
    turns = await asyncio.gather(*(team[name](task.prompt) for name in AGENTS))
    return turns[-1]


def set_up(size: StepSize, folder: Path) -> Measure:
    return measure_steps(config_for(size, random_model(folder, size.model)))


def config_for(size: StepSize, base: Path) -> Config:
    """Return the config of two agents, each with a policy of its own."""
    sections: dict[str, Any] = make_config(size, base).model_dump(exclude_unset=True)
    [agent], [policy] = sections["team"].values(), sections["policies"].values()
    sections["team"] = {name: agent | {"policy": name} for name in AGENTS}
    sections["policies"] = dict.fromkeys(AGENTS, policy)
    sections["workflow"] = f"{__name__}:side_by_side"
    sections["environment"]["name"] = f"{__name__}:JointNumbers"
    return Config.model_validate(sections)
