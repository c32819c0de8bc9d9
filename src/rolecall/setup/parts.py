"""Names and options of a config in, the parts that they name out: an environment, rewards, ..."""

from __future__ import annotations

from collections.abc import Sequence

from rolecall.agents.agent import Agent, Policy
from rolecall.config import registry
from rolecall.config.errors import ConfigError
from rolecall.config.schema import AgentConfig, Config, Named, RewardConfig
from rolecall.environments.mixed import by_source
from rolecall.interfaces.environment import Environment
from rolecall.interfaces.tool import Tool
from rolecall.rollout.curriculum import PassRates
from rolecall.rollout.episodes import Reward
from rolecall.rollout.task_sampler import TaskSampler
from rolecall.setup import validate_options
from rolecall.setup.algorithms import check_options
from rolecall.tools.functions import tool
from rolecall.tools.use import Stateless, Toolkit, ToolUse
from rolecall.types import Task
from rolecall.workflows.base import Workflow, workflow

TOOL_LIMITS = (
    "format", "max_calls", "calls_per_turn", "timeout_s", "result_chars", "chars_per_turn",
)  # fmt: skip


def resolve_workflow(named: Named) -> Workflow:
    found = registry.resolve("workflow", named.name, key="workflow.name")
    try:
        return found if isinstance(found, Workflow) else workflow(found)
    except ValueError as error:
        raise ConfigError(f"workflow.name: {error}") from error


def make_environment(config: Config) -> Environment:
    kind = registry.resolve("environment", config.environment.name, key="environment.name")
    options = check_options("environment", config.environment, kind, skip=0)
    try:
        return kind(**options)
    except ConfigError:
        raise
    except ValueError as error:
        raise ConfigError(f"environment: {error}") from error


def make_task_sampler(config: Config, train: Sequence[Task]) -> TaskSampler:
    """Raises ConfigError where a step cannot be drawn as asked."""
    rollout = config.rollout
    if rollout.stratify:
        try:
            train = by_source(train)
        except ValueError as error:
            raise ConfigError(f"rollout.stratify {error}") from error
    rates = None
    if rollout.curriculum is not None:
        rates = PassRates(rollout.curriculum, lag=config.trainer.max_staleness)
    sampler = TaskSampler(train, groups=rollout.groups, seed=config.trainer.seed, rates=rates)
    validate_options.check_task_sampler(config, sampler)
    return sampler


def make_reward(name: str, given: float | RewardConfig) -> tuple[Reward, float]:
    """A reward and its weight; a class is made with its options."""
    weight = given if isinstance(given, float) else given.weight
    options = {} if isinstance(given, float) else given.options
    found = registry.resolve("reward", name, key="rewards")
    if not isinstance(found, type):
        if options:
            raise ConfigError(f"rewards.{name}: {next(iter(options))!r} has no effect")
        return found, weight
    named = Named(name=name, **options)
    checked = check_options(f"rewards.{name}", named, found, skip=0)
    if getattr(found, "weighs_itself", False) and weight != 1.0:
        raise ConfigError(f"rewards.{name}.weight has no effect: it has weights of its own")
    try:
        return found(**checked), weight
    except ValueError as error:
        raise ConfigError(f"rewards.{name}: {error}") from error


def make_agents(
    config: Config, flow: Workflow, policies: dict[str, Policy], kits: dict[str, ToolUse]
) -> dict[str, Agent]:
    return {
        name: _agent(name, agent, flow, policies, tools=kits.get(name))
        for name, agent in config.team.items()
    }


def make_tools(config: Config) -> dict[str, ToolUse]:
    """By agent. Agents that name a tool with the same options share it."""
    kits: dict[str, Toolkit] = {}
    made: dict[str, ToolUse] = {}
    for name, agent in config.team.items():
        if agent.tools is None:
            continue
        for number, named in enumerate(agent.tools.use):
            key = repr(named)
            if key not in kits:
                kits[key] = _kit(named, key=f"team.{name}.tools.use[{number}]")
        made[name] = ToolUse(
            kits=tuple(kits[repr(named)] for named in agent.tools.use),
            **{field: getattr(agent.tools, field) for field in TOOL_LIMITS},
        )
    return made


def _kit(named: Named, *, key: str) -> Toolkit:
    found = registry.resolve("tool", named.name, key=key)
    if isinstance(found, Tool):
        if named.options:
            raise ConfigError(f"{key}: tool {named.name!r} has no options")
        return Stateless(found)
    if not isinstance(found, type):
        return Stateless(tool(found))
    options = check_options("tool", named, found, skip=0)
    try:
        kit: Toolkit = found(**options)
    except ValueError as error:
        raise ConfigError(f"{key}: {error}") from error
    return kit


def _agent(
    name: str,
    config: AgentConfig,
    flow: Workflow,
    policies: dict[str, Policy],
    *,
    tools: ToolUse | None,
) -> Agent:
    role = config.role or name
    parser = flow.parsers.get(role)
    if config.parser is not None:
        parser = registry.resolve("parser", config.parser, key=f"team.{name}.parser")
    if config.invalid_penalty and parser is None and tools is None:
        raise ConfigError(
            f"team.{name}.invalid_penalty has no effect: nothing says what valid is; set "
            f"team.{name}.parser"
        )
    return Agent(
        name=name,
        policy=policies[config.policy],
        role=role,
        system=config.system,
        sampling=config.sampling,
        parser=parser,
        memory=config.memory,
        trainable=config.trainable,
        invalid_penalty=config.invalid_penalty,
        tools=tools,
    )
