"""Translates MARTI's agents, workflow and tools, with their names and prompts."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import PurePath

from rolecall.core.errors import ConfigError, nearest
from rolecall.core.json_types import JsonObject, JsonValue
from rolecall.importers.keys import Given, Tree, is_unknown, set_key

PLACEHOLDER = re.compile(r"\$\w+|\{+\w+\}+")
AGENT_KEYS = ("role", "pretrain", "is_tuning", "chat_template", "code_execution",
              "search_execution", "save_path", "ckpt_path", "is_api_model", "model_name",
              "is_reasoning_model")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Flow:
    """One of their workflows and what it is here."""

    name: str  # ours
    roles: dict[str, str]  # their role -> ours
    options: dict[str, str] = field(default_factory=dict)  # their workflow_args -> ours
    fixed: Tree = field(default_factory=dict)  # options of ours that make it theirs
    environment: str = "math"


DEBATE = Flow(
    "majority_vote", {"generator": "debater"},
    {"num_rounds": "rounds", "max_others": "max_others", "contain_self": "contain_self"},
)  # fmt: skip
CHAIN = Flow("chain", {"generator": "generator", "verifier": "verifier", "refiner": "refiner"})
MIXTURE = Flow("mixture", {"generator": "proposer", "aggregator": "aggregator"})
FLOWS: dict[str, Flow] = {
    "chain_workflow": CHAIN,
    "chain-of-agents": CHAIN,
    "debate_workflow": DEBATE,
    "multi-agents-debate": DEBATE,
    "moa_workflow": MIXTURE,
    "mixture-of-agents": MIXTURE,
    "mathchat_workflow": Flow(
        "mathchat",
        {
            "agent_problem_solver": "solver",
            "agent_code_executor": "executor",
            "agent_verifier": "verifier",
        },
        fixed={"show_solver": True},
    ),
    "single_mathworkflow": Flow("single", {"generator": "solver"}),
    "single_codeworkflow": Flow("single", {"generator": "solver"}, environment="code"),
    "tool_workflow": Flow("multi_turn", {"generator": "actor"}, environment="search"),
}
TOOL_KEYS = ("type", "base_url", "timeout", "topk", "schema_path", "enable_rate_limiting",
             "rate_limit")  # fmt: skip


def build_team(given: Given, config: Tree) -> None:
    """Set the workflow, its agents and their policies."""
    spelt = "workflow_func_path" if given["workflow_func_path"] else "agent_workflow"
    flow = FLOWS.get(PurePath(str(given[spelt])).stem)
    if flow is None:
        given.refuse(spelt, f"no such workflow here; known: {', '.join(FLOWS)}")
        given.mark_missing(config, "workflow.name", "how the agents talk")
        given.mark_missing(config, "environment.name", "what they work on")
        return
    if spelt == "workflow_func_path":
        given.silence(["agent_workflow"], "workflow_func_path says it")
    config["workflow"] = {"name": flow.name, **flow.fixed}
    set_key(config, "environment.name", flow.environment)
    _workflow_args(given, config, flow)
    agents = _agents(given)
    played = [flow.roles.get(str(agent.get("role")), "") for _, agent in agents]
    for number, (name, agent) in enumerate(agents):
        ours = played[number] + (str(number) if played.count(played[number]) > 1 else "")
        _agent(given, config, flow, name=name, ours=ours, agent=agent)


def _agents(given: Given) -> list[tuple[str, JsonObject]]:
    """Their ids with their settings. Raises ConfigError for a key that no agent has."""
    listed = given["agents"] or []
    listed = listed if isinstance(listed, list) else [listed]
    agents = [pair for one in listed for pair in one.items()]
    for name, agent in agents:
        for key in agent:
            if key not in AGENT_KEYS and key not in given.keys:
                raise ConfigError(
                    f"agents.{name}.{key}: no key of MARTI; "
                    f"{nearest(key, [*AGENT_KEYS, *given.keys])}"
                )
    if not agents:
        given.refuse("agents", "no agents are given; they stand in the YAML of --config-name")
    return agents


def _agent(
    given: Given, config: Tree, flow: Flow, *, name: str, ours: str, agent: JsonObject
) -> None:
    role = flow.roles.get(str(agent.get("role")))
    if role is None:
        roles = ", ".join(flow.roles)
        given.refuse("agents", f"{name}: {flow.name} has no {agent.get('role')!r}, only {roles}")
        return
    for key, value in agent.items():
        if key not in AGENT_KEYS and value != given[key]:
            given.refuse("agents", f"{name}.{key}: set it in our config, under team.{ours}")
    if agent.get("search_execution"):
        given.refuse("agents", f"{name}: only multi_turn searches, with the environment search")
    if agent.get("is_api_model"):
        given.refuse("agents", f"{name}: {given.keys['is_api_model'].because}")
    first = next(iter(config["policies"]), ours)
    policy = first if given["shared_agents"] else ours
    section: Tree = {"policy": policy} | ({"role": role} if ours != role else {})
    system = _system(agent.get("chat_template", given["chat_template"]))
    if system:
        section["system"] = system
    if not agent.get("is_tuning", True):
        section["trainable"] = False
    if agent.get("code_execution"):
        set_key(section, "tools", {"use": [{"name": "python"}], "format": "code"})
    config["team"][ours] = section
    base = agent.get("pretrain", given["pretrain"])
    if base is None or is_unknown(base):
        given.mark_missing(config, f"policies.{policy}.base", "the model")
    else:
        set_key(config, f"policies.{policy}.base", base)


def _system(template: JsonValue) -> str:
    """Return the lines of a prompt that name no variable."""
    text = "\n".join(template) if isinstance(template, list) else str(template or "")
    lines = [line.strip() for line in text.split("\n")]
    return "\n".join(line for line in lines if line and not PLACEHOLDER.search(line))


def _workflow_args(given: Given, config: Tree, flow: Flow) -> None:
    """Options that their workflow reads; others say nothing there, and nothing here."""
    for name in ("num_rounds", "max_others", "contain_self"):
        key = f"workflow_args.{name}"
        value = given[key]
        if name == "num_rounds" and flow is MIXTURE and value is not None:
            set_key(config, "workflow.layers", max(1, value - 1))  # the aggregator is a round there
            given.placed[key] = "workflow.layers"
        elif name not in flow.options:
            given.silence([key], f"{flow.name} has no such option")
        elif value is not None:
            set_key(config, f"workflow.{flow.options[name]}", value)


def build_tools(given: Given, config: Tree) -> None:
    """Make a search server the environment's, and an interpreter the executor's tool."""
    turns = given["tools_config.max_turns"]
    for name, tool in (given["tools_config.tools"] or {}).items():
        for key in tool:
            if key not in TOOL_KEYS:
                where = f"tools_config.tools.{name}.{key}"
                raise ConfigError(f"{where}: no key of MARTI; {nearest(key, list(TOOL_KEYS))}")
        if tool.get("type") == "search_r1" and config["environment"]["name"] == "search":
            _search(config, tool)
        elif tool.get("type") == "sandbox_fusion" and _executors(config):
            _python(config, tool, turns=turns)
        else:
            given.refuse("tools_config.tools", f"{name}: nobody in this team can use it")
    if config["workflow"]["name"] != "multi_turn" and not _executors(config):
        given.silence(["tools_config.max_turns"], "nobody in this team has tools")
    elif turns is not None and not _executors(config):
        set_key(config, "workflow.max_turns", turns + 1)  # so many calls, and then the answer


def _executors(config: Tree) -> list[Tree]:
    """Return the agents that run code."""
    return [agent for agent in config["team"].values() if "tools" in agent]


def _search(config: Tree, tool: JsonObject) -> None:
    set_key(config, "environment.url", str(tool.get("base_url", "")).removesuffix("/retrieve"))
    set_key(config, "environment.topk", tool.get("topk", 3))
    set_key(config, "environment.deadline_s", float(tool.get("timeout", 30)))


def _python(config: Tree, tool: JsonObject, *, turns: int | None) -> None:
    wall_s = float(tool.get("timeout", 10))
    for agent in _executors(config):
        python = {"name": "python", "wall_s": wall_s, "url": tool.get("base_url")}
        agent["tools"]["use"] = [python]
        if turns is not None:
            agent["tools"]["max_calls"] = max(1, turns - 1)
