"""`rolecall tiny build`: makes a small model that can take part in the teams of some recipes."""

from __future__ import annotations

import asyncio
from pathlib import Path

from rolecall.agents.agent import Policy
from rolecall.config.load import find
from rolecall.core.errors import ConfigError
from rolecall.engines.scripted import ScriptedEngine
from rolecall.rollout.episodes import RolloutContext
from rolecall.runtime.consoles import PlainConsole
from rolecall.setup.agents import make_agents, make_tools
from rolecall.setup.plan import Plan, load_plan
from rolecall_lab.tiny.build import Size
from rolecall_lab.tiny.build import build as build_model
from rolecall_lab.tiny.tokenizer import fit

console = PlainConsole()


def build_tiny(
    sources: list[str],
    overrides: list[str],
    *,
    output: Path,
    size: Size,
    seed: int,
) -> None:
    """Make a model folder from what the teams of some recipes demonstrate."""
    contexts = [demonstrating(load_plan(find(source), overrides)) for source in sources]
    try:
        build_model(output, contexts, size=size, seed=seed, log=console.print)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    finally:
        for context in contexts:
            asyncio.run(context.close())
    console.print(f"Wrote {output}; use it as base: {output}")


def demonstrating(plan: Plan) -> RolloutContext:
    """Return the team without its models: its workflow says what it says."""
    config = plan.config
    nobody = fit([], size=300, tags=())
    silent = ScriptedEngine(nobody, lambda request: "")
    policies = {name: Policy(name, nobody, silent) for name in config.policies}
    tools = make_tools(config, plan.tools)
    return RolloutContext(
        agents=make_agents(config, policies, parsers=plan.parsers, tools=tools),
        workflow=plan.workflow,
        options=plan.options,
        environment=plan.environment.make(),
        rewards={},
    )
