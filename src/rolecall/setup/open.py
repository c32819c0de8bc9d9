"""Makes what needs no weights: the environment with its tasks, rewards and tools."""

from __future__ import annotations

from dataclasses import dataclass

from rolecall.config.errors import ConfigError
from rolecall.interfaces.environment import Environment
from rolecall.rollout.episodes import Reward
from rolecall.setup.agents import make_tools
from rolecall.setup.attempts import Attempts
from rolecall.setup.plan import Plan
from rolecall.setup.rewards import make_reward
from rolecall.setup.tasks import Tasks, read_tasks
from rolecall.setup.validate_algorithms import check_fork, num_candidates
from rolecall.tools.use import ToolUse


@dataclass(frozen=True, slots=True)
class Opened:
    """What a run plays in, beside its models."""

    environment: Environment
    tasks: Tasks
    rewards: dict[str, tuple[Reward, float]]  # with their weights
    tools: dict[str, ToolUse]  # by agent


def open_parts(plan: Plan) -> Opened:
    """Read data, make rewards and tools. Raises ConfigError with all problems."""
    attempts = Attempts()
    world = attempts.of(_environment, plan)
    rewards = {
        name: (made, weight)
        for name, (part, weight) in plan.rewards.items()
        if (made := attempts.of(make_reward, part)) is not None
    }
    tools = attempts.of(make_tools, plan.config, plan.tools)
    if world is None or tools is None or attempts.problems:
        raise plan.config.located(attempts.problems)
    environment, tasks = world
    return Opened(environment, tasks, rewards, tools)


def _environment(plan: Plan) -> tuple[Environment, Tasks]:
    environment: Environment = plan.environment.make()
    tasks = read_tasks(plan.config, environment)
    number = num_candidates(plan.config, plan.workflow) or 2
    firsts = [part[0] for part in tasks.sampler.parts.values()]
    problems = [
        line
        for first in firsts
        for line in check_fork(plan.config, plan.workflow, environment, first, number)
    ]
    if problems:
        raise ConfigError(*dict.fromkeys(problems))
    return environment, tasks
