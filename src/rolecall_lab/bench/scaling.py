"""Measures how the time of a training step grows with each kind of work in it.

An axis changes one size of a step by powers of two and leaves the others as they are.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rolecall.agents.agent import Said
from rolecall.agents.team import Team
from rolecall.config.schema import Config
from rolecall.core.interfaces.environment import World
from rolecall.core.types import Task, Turn
from rolecall.workflows.base import workflow
from rolecall_lab.bench import Measure, Measured
from rolecall_lab.bench.grpo_step import StepSize
from rolecall_lab.bench.rolecall_step import make_config, measure_steps
from rolecall_lab.bench.small_models import random_model

REPLY = "1 2 3 4 5 6 7 8"  # what stands behind a turn that an agent reads
RANK = 8  # of adapters


@dataclass(frozen=True, slots=True)
class Work:
    """Holds what one step samples and trains on."""

    model: str = "s"  # a size in small_models.py
    tasks: int = 4
    samples: int = 8  # of each task
    prompt: int = 64  # tokens of a task
    answer: int = 32  # tokens of a turn
    turns: int = 1  # of an episode
    agents: int = 1  # who take turns
    reads_all: bool = False  # a turn reads all turns before it; otherwise the task and one turn
    has_own_weights: bool = False  # each agent; otherwise all share one policy
    has_adapters: bool = False  # each policy is an adapter on a base that all share

    @property
    def new_tokens(self) -> int:
        """Tokens of an episode that no turn before has read, where one agent talks."""
        replies = (self.turns - 1) * len(REPLY.split())
        return self.prompt + self.turns * self.answer + replies


@dataclass(frozen=True, slots=True)
class Axis:
    """One size of a step that grows."""

    title: str
    size: str  # what the horizontal axis counts
    values: tuple[int, ...]
    work: Callable[[int], Work]
    expected: str  # the slope, and why
    position: Callable[[int], int] = int  # of a value on the horizontal axis
    reason: str = ""  # why the measured slope is above 1.1, where it is


def hold_conversation(turns: int) -> Work:
    """Return the work of one agent that speaks so many times and reads all that was said."""
    return Work(prompt=len(REPLY.split()), answer=16, turns=turns, reads_all=True)


AXES = {
    "group": Axis(
        "Group size",
        "episodes of a task",
        (4, 8, 16, 32, 64, 128),
        lambda value: Work(samples=value),
        "up to 1: a group reads its prompt once",
    ),
    "turns": Axis(
        "Turns",
        "new tokens of an episode, for 1 to 32 turns",
        (1, 2, 4, 8, 16, 32),
        hold_conversation,
        "up to 1: a turn computes only what no turn before has read",
        position=lambda value: hold_conversation(value).new_tokens,
        reason="each new token reads the keys and values of all tokens before it. After 32 turns "
        "those of the 32 episodes are 50 MB beside 3 MB of weights, so attention is about half of "
        "the time; in a larger model it is less. Writing the whole conversation with the chat "
        "template for each turn is 8 % at 32 turns",
    ),
    "agents": Axis(
        "Agents of one policy",
        "agents, each with one turn",
        (2, 4, 8, 16),
        lambda value: Work(turns=value, agents=value),
        "1: an agent adds a turn, which reads the one before it",
    ),
    "prompt": Axis(
        "Prompt",
        "tokens of the prompt",
        (64, 128, 256, 512, 1024),
        lambda value: Work(prompt=value),
        "below 1: the prompt grows and the answers do not; their attention to it does",
    ),
    "policies": Axis(
        "Policies",
        "policies, which share 8 turns",
        (1, 2, 4, 8),
        lambda value: Work(turns=8, agents=value, has_own_weights=True),
        "well below 1: the turns are the same; a policy adds its reading of the task and its "
        "optimizer step",
    ),
    "adapters": Axis(
        "Adapters on one base",
        "adapters, which share 8 turns",
        (1, 2, 4, 8),
        lambda value: Work(turns=8, agents=value, has_own_weights=True, has_adapters=True),
        "well below 1, as for policies; one alone is added to its weights, which several are not",
    ),
}


@workflow
async def hold_talk(team: Team, task: Task, world: World, turns: int, reads_all: bool) -> Turn:
    """Let the agents take turns; each reads the task and the turn before its own.

    reads_all: each reads all turns before its own.
    """
    names = team.names
    heard: list[Said] = [task.prompt]
    turn = await team[names[0]](*heard)
    for number in range(1, turns):
        heard = [*(heard if reads_all else [task.prompt]), turn, REPLY]
        turn = await team[names[number % len(names)]](*heard)
    return turn


def config_for(work: Work, folder: Path) -> Config:
    """Return the config of a run whose steps do this work; `folder` is for the model."""
    size = StepSize(
        work.model, tasks=work.tasks, samples=work.samples, prompt=work.prompt,
        completion=work.answer, rank=RANK if work.has_adapters else 0,
    )  # fmt: skip
    sections: dict[str, Any] = make_config(
        size, random_model(folder, work.model), cache_gb=1.0
    ).model_dump(exclude_unset=True)
    [agent], [policy] = sections["team"].values(), sections["policies"].values()
    sections["team"], sections["policies"] = {}, {}
    for number in range(work.agents):
        name = f"policy{number}" if work.has_own_weights else "policy"
        sections["team"][f"agent{number}"] = agent | {"policy": name}
        sections["policies"][name] = policy
    sections["workflow"] = {
        "name": f"{__name__}:hold_talk",
        "turns": work.turns,
        "reads_all": work.reads_all,
    }
    return Config.model_validate(sections)


def measure_seconds(work: Work, folder: Path) -> Measure:
    """Return what measures the seconds of each step, beside those of the processor.

    The latter count all threads, also where they wait for one another.
    """
    measure_step = measure_steps(config_for(work, folder))

    def measure(number: int) -> Measured:
        started = time.process_time()
        seconds = 1.0 / measure_step(number).value
        return Measured(seconds, {"processor seconds": time.process_time() - started})

    return measure


def shrink(work: Work) -> Work:
    """Return the same on the smallest model with short answers; its times mean nothing."""
    return replace(work, model="xs", tasks=2, samples=min(work.samples, 8), answer=4)
