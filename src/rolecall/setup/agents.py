"""Makes the agents of a config, with their parsers and tools."""

from __future__ import annotations

import inspect

from rolecall.agents.agent import Agent, CrossPolicy, Parser, Policy
from rolecall.config import registry
from rolecall.config.schema import AgentConfig, Config, Named
from rolecall.core.errors import ConfigError
from rolecall.core.interfaces.tool import Tool
from rolecall.setup.component import Component
from rolecall.tools.functions import tool
from rolecall.tools.use import Stateless, Toolkit, ToolUse
from rolecall.workflows.base import Workflow

TOOL_LIMITS = (
    "format", "max_calls", "calls_per_turn", "timeout_s", "result_chars", "chars_per_turn",
)  # fmt: skip


def choose_parser(name: str, config: AgentConfig, flow: Workflow) -> Parser | None:
    """Return the agent's own parser, or the workflow's for its role. Raises ConfigError."""
    parser = flow.parsers.get(config.role or name)
    if config.parser is not None:
        parser = registry.resolve("parser", config.parser, key=f"team.{name}.parser")
        if not callable(parser) or inspect.iscoroutinefunction(parser):
            raise ConfigError(
                f"team.{name}.parser: {config.parser!r} is not a plain function of a turn; write "
                "`def`, without async"
            )
    # A program outside says with each request what it demands.
    is_judged = (
        parser is not None
        or config.tools is not None
        or config.require_think_tags
        or flow.is_external
    )
    if config.invalid_penalty and not is_judged:
        raise ConfigError(
            f"team.{name}.invalid_penalty has no effect: nothing says what valid is; set "
            f"team.{name}.parser or team.{name}.require_think_tags"
        )
    return parser


def tool_components(config: Config) -> dict[str, Component | Toolkit]:
    """Return the tools by name and options: agents that name a tool with the same options share
    it.
    """
    tools: dict[str, Component | Toolkit] = {}
    for name, agent in config.team.items():
        for number, named in enumerate(agent.tools.use if agent.tools else []):
            if repr(named) not in tools:
                tools[repr(named)] = _tool_component(named, key=f"team.{name}.tools.use[{number}]")
    return tools


def _tool_component(named: Named, *, key: str) -> Component | Toolkit:
    """Return a kit of tools, or what makes it. Raises ConfigError."""
    resolved = registry.resolve("tool", named.name, key=key)
    if isinstance(resolved, Tool):
        if named.options:
            raise ConfigError(f"{key}: tool {named.name!r} has no options; remove them")
        return Stateless(resolved)
    if not isinstance(resolved, type):
        return Stateless(tool(resolved))
    return Component(
        key, resolved, registry.check_options(resolved, named.options, key="tool", skip=0)
    )


def make_tools(config: Config, parts: dict[str, Component | Toolkit]) -> dict[str, ToolUse]:
    """Return the tools that each agent may call. Raises ConfigError."""
    kits: dict[str, Toolkit] = {
        name: component.make() if isinstance(component, Component) else component
        for name, component in parts.items()
    }
    return {
        name: ToolUse(
            kits=tuple(kits[repr(named)] for named in agent.tools.use),
            **{field: getattr(agent.tools, field) for field in TOOL_LIMITS},
        )
        for name, agent in config.team.items()
        if agent.tools is not None
    }


def make_agents(
    config: Config,
    policies: dict[str, Policy],
    *,
    parsers: dict[str, Parser | None],
    tools: dict[str, ToolUse],
) -> dict[str, Agent]:
    return {
        name: Agent(
            name=name,
            policy=policies[agent.policy],
            role=agent.role or name,
            system=agent.system,
            sampling=agent.sampling,
            truncation=agent.truncation,
            parser=parsers[name],
            memory=agent.memory,
            trainable=agent.trainable,
            invalid_penalty=agent.invalid_penalty,
            require_think_tags=agent.require_think_tags,
            tools=tools.get(name),
            cross_policy=_cross_policy(agent, policies),
        )
        for name, agent in config.team.items()
    }


def _cross_policy(agent: AgentConfig, policies: dict[str, Policy]) -> CrossPolicy | None:
    section = agent.cross_policy
    return CrossPolicy(policies[section.policy], section.share) if section else None
