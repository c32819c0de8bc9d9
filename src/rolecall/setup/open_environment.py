"""Makes what needs no weights: the environment with its tasks, rewards and tools."""

from __future__ import annotations

from dataclasses import dataclass

from rolecall.config.schema import WRITTEN
from rolecall.config.user_code_location import locate_class
from rolecall.core.errors import ConfigError, InfrastructureError
from rolecall.core.interfaces.demonstrator import Demonstrator
from rolecall.core.interfaces.environment import Environment
from rolecall.core.json_types import Options
from rolecall.demonstrations.offline_data import check_readable, check_shown
from rolecall.engines.backend import engine_backends
from rolecall.rollout.episodes import Reward
from rolecall.runtime.progress import activity
from rolecall.setup.agents import make_tools
from rolecall.setup.chat_models import ChatModels, fill_in, make_chat_models
from rolecall.setup.plan import Plan
from rolecall.setup.problem_collector import ProblemCollector
from rolecall.setup.rewards import make_reward
from rolecall.setup.tasks import Tasks, read_tasks
from rolecall.setup.validate_algorithms import check_fork, num_candidates
from rolecall.setup.validate_models import check_bases
from rolecall.tools.use import ToolUse

DEMONSTRATORS = ("code", "math", "search", "tool_use")  # environments that write demonstrations


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The environment, rewards and tools that episodes are played with, beside their agents."""

    environment: Environment
    rewards: dict[str, tuple[Reward, float]]  # with their weights
    tools: dict[str, ToolUse]  # by agent
    chat_models: ChatModels  # of the policies that rewards and the environment ask


@dataclass(frozen=True, slots=True)
class Opened(Surroundings):
    """A run's tasks and surroundings: everything beside its models."""

    tasks: Tasks


def open_components(plan: Plan) -> Opened:
    """Read data, make rewards and tools. Raises ConfigError with all problems."""
    with activity("reading tasks and making rewards and tools"):
        return _open_components(plan)


def _open_components(plan: Plan) -> Opened:
    attempts = ProblemCollector()
    attempts.note(check_bases(plan.config))
    for backend in engine_backends(plan.config):
        attempts.note(backend.check_machine())
    attempts.run(_check_data, plan)
    attempts.run(_check_experts, plan)
    fields = _made(plan, attempts)
    environment = fields.pop("environment")
    tasks = attempts.run(_tasks, plan, environment) if environment is not None else None
    if environment is None or tasks is None or attempts.problems:
        raise plan.config.locate_problems(attempts.problems)
    return Opened(environment=environment, tasks=tasks, **fields)


def open_surroundings(plan: Plan) -> Surroundings:
    """Open the surroundings without tasks, for processes that are told what to work on."""
    attempts = ProblemCollector()
    fields = _made(plan, attempts)
    if attempts.problems:
        raise plan.config.locate_problems(attempts.problems)
    return Surroundings(**fields)


async def check_environment(environment: Environment) -> None:
    """Check that an environment's services can be reached; raises ConfigError otherwise."""
    if hasattr(environment, "check"):
        try:
            await environment.check()
        except (InfrastructureError, OSError) as error:
            raise ConfigError(f"environment: {error}") from error


def _check_data(plan: Plan) -> None:
    """Check that the data can be read; its rows are read where the tokenizers are."""
    if (file := plan.config.rollout.data) not in (None, WRITTEN):
        try:
            check_readable(file)
        except ValueError as error:
            raise ConfigError(f"rollout.data: {error}") from error


def _check_experts(plan: Plan) -> None:
    """Check that every agent that imitates somebody is shown something."""
    imitators = {n: file for n, a in plan.algorithms.items() if (file := a.demonstrations)}
    alone = next(iter(plan.algorithms)) if len(plan.algorithms) == 1 else None
    for file in sorted(set(imitators.values())):
        named = [name for name, own in imitators.items() if own == file]
        try:
            check_shown(file, named, alone=alone)
        except ValueError as error:
            raise ConfigError(f"algorithm.experts: {error}") from error


def _made(plan: Plan, attempts: ProblemCollector) -> Options:
    """Return the fields of Surroundings; None, and problems noted, for what cannot be made."""
    models = make_chat_models(plan.config, plan.chat_policies)
    return {
        "chat_models": models,
        "environment": attempts.run(_environment, plan, models),
        "rewards": {
            name: (reward, weight)
            for name, (part_, weight) in plan.rewards.items()
            if (reward := attempts.run(make_reward, part_, models)) is not None
        },
        "tools": attempts.run(make_tools, plan.config, plan.tools),
    }


def _environment(plan: Plan, models: ChatModels) -> Environment:
    environment: Environment = fill_in(plan.environment, models).make()
    for method, arguments in (("tasks", "split"), ("open", "task, *, seed")):
        if not callable(getattr(environment, method, None)):
            raise ConfigError(
                f"environment.name: {plan.config.environment.name!r} "
                f"({locate_class(type(environment))}) has no {method}({arguments}), "
                "so it is no environment; write a class with the methods of "
                "rolecall.core.interfaces.environment.Environment"
            )
    return environment


def _check_demonstrator(plan: Plan, environment: Environment) -> None:
    """Check that the environment can write the demonstrations that are asked of it."""
    config = plan.config
    if config.rollout.data != WRITTEN:
        return
    if not isinstance(environment, Demonstrator):
        raise ConfigError(
            f"rollout.data: environment {config.environment.name!r} writes no demonstrations; "
            f"these do: {', '.join(DEMONSTRATORS)}; or name a file of them"
        )
    native = [n for n, a in config.team.items() if a.tools and a.tools.format == "native"]
    if native:
        raise ConfigError(
            f"team.{native[0]}.tools.format: demonstrations write calls in tags; write tags"
        )


def _tasks(plan: Plan, environment: Environment) -> Tasks:
    _check_demonstrator(plan, environment)
    tasks = read_tasks(plan.config, environment)
    number = num_candidates(plan.config, plan.workflow) or 2
    firsts = [source[0] for source in tasks.sampler.parts.values()]
    problems = [
        line
        for first in firsts
        for line in check_fork(plan.config, plan.workflow, environment, first, number)
    ]
    if problems:
        raise ConfigError(*dict.fromkeys(problems))
    return tasks
