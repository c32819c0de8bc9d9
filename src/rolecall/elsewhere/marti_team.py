"""MARTI's agents, workflow and tools in; ours with their names and prompts out."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from rolecall.config_errors import ConfigError
from rolecall.elsewhere.keys import Given, Tree, is_unknown, put
from rolecall.registry import nearest

PLACEHOLDER = re.compile(r"\$\w+|\{+\w+\}+")
AGENT_KEYS = ("role", "pretrain", "is_tuning", "chat_template", "code_execution",
              "search_execution", "save_path", "ckpt_path", "is_api_model", "model_name",
              "is_reasoning_model")  # fmt: skip
COMPUTED = "the workflow itself shows the task and what others said"
CALLS = "calls are made as they come"


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
WORKFLOW_ARGS = {  # what every workflow of theirs may be given
    "task": "told by the workflow",
    "template_id": "prompts stand in the config",
    "shuffle_responses": "others are always shown in an order of chance",
}
TOOLS_ARGS = {
    "num_workers": CALLS,
    "max_concurrent_calls": CALLS,
    "enable_metrics": "calls are always counted",
    "enable_rate_limiting": CALLS,
    "rate_limit": CALLS,
    "max_model_len": "told by the model's own config",
    "max_tokens_per_turn": "sampling.max_tokens bounds a turn",
}
TOOL_KEYS = ("type", "base_url", "timeout", "topk", "schema_path", "enable_rate_limiting",
             "rate_limit")  # fmt: skip


def build_team(given: Given, config: Tree) -> None:
    """The workflow, its agents and their policies."""
    spelt = "workflow_func_path" if given["workflow_func_path"] else "agent_workflow"
    flow = FLOWS.get(PurePath(str(given[spelt])).stem)
    if flow is None:
        given.refuse(spelt, f"no such workflow here; known: {', '.join(FLOWS)}")
        given.wanted(config, "workflow.name", "how the agents talk")
        given.wanted(config, "environment.name", "what they work on")
        return
    if spelt == "workflow_func_path":
        given.silence(["agent_workflow"], "workflow_func_path says it")
    config["workflow"] = {"name": flow.name, **flow.fixed}
    put(config, "environment.name", flow.environment)
    _workflow_args(given, config, flow)
    agents = _agents(given)
    played = [flow.roles.get(str(agent.get("role")), "") for _, agent in agents]
    for number, (name, agent) in enumerate(agents):
        ours = played[number] + (str(number) if played.count(played[number]) > 1 else "")
        _agent(given, config, flow, name=name, ours=ours, agent=agent)


def _agents(given: Given) -> list[tuple[str, dict[str, Any]]]:
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
    given: Given, config: Tree, flow: Flow, *, name: str, ours: str, agent: dict[str, Any]
) -> None:
    role = flow.roles.get(str(agent.get("role")))
    if role is None:
        roles = ", ".join(flow.roles)
        given.refuse("agents", f"{name}: {flow.name} has no {agent.get('role')!r}, only {roles}")
        return
    for key, value in agent.items():
        if key not in AGENT_KEYS and value != given[key]:
            given.refuse("agents", f"{name}.{key}: set it in our config, under team.{ours}")
    if agent.get("is_api_model"):
        given.refuse("agents", f"{name}: {given.keys['is_api_model'].because}")
    first = next(iter(config["policies"]), ours)
    policy = first if given["shared_agents"] else ours
    made: Tree = {"policy": policy} | ({"role": role} if ours != role else {})
    system = _system(agent.get("chat_template", given["chat_template"]))
    if system:
        made["system"] = system
    if not agent.get("is_tuning", True):
        made["trainable"] = False
    if agent.get("code_execution"):
        put(made, "tools", {"use": [{"name": "python"}], "format": "code"})
    config["team"][ours] = made
    base = agent.get("pretrain", given["pretrain"])
    if base is None or is_unknown(base):
        given.wanted(config, f"policies.{policy}.base", "the model")
    else:
        put(config, f"policies.{policy}.base", base)


def _system(template: Any) -> str:
    """The lines of a prompt that name no variable, the marks of a Python string read."""
    text = "\n".join(template) if isinstance(template, list) else str(template or "")
    lines = [line.strip() for line in text.split("\n")]
    return "\n".join(line for line in lines if line and not PLACEHOLDER.search(line))


def _workflow_args(given: Given, config: Tree, flow: Flow) -> None:
    options = given["workflow_args"] or {}
    for name, value in options.items():
        if name in flow.options:
            put(config, f"workflow.{flow.options[name]}", value)
        elif name == "num_rounds" and flow is MIXTURE:
            put(config, "workflow.layers", max(1, value - 1))  # the aggregator is a round there
        elif name == "shuffle_responses" and value is False:
            given.refuse(
                "workflow_args", "shuffle_responses: others are shown in an order of chance"
            )
        elif name not in WORKFLOW_ARGS and name not in DEBATE.options:
            known = [*WORKFLOW_ARGS, *DEBATE.options]
            raise ConfigError(f"workflow_args.{name}: no key of MARTI; {nearest(name, known)}")


def build_tools(given: Given, config: Tree) -> None:
    """A search server becomes the environment's, an interpreter the executor's tool."""
    options = given["tools_config"] or {}
    for name in options:
        if name not in (*TOOLS_ARGS, "max_turns", "tools"):
            known = [*TOOLS_ARGS, "max_turns", "tools"]
            raise ConfigError(f"tools_config.{name}: no key of MARTI; {nearest(name, known)}")
    turns = options.get("max_turns")
    for name, tool in (options.get("tools") or {}).items():
        for key in tool:
            if key not in TOOL_KEYS:
                place = f"tools_config.tools.{name}.{key}"
                raise ConfigError(f"{place}: no key of MARTI; {nearest(key, list(TOOL_KEYS))}")
        if tool.get("type") == "search_r1" and config["environment"]["name"] == "search":
            _search(config, tool)
        elif tool.get("type") == "sandbox_fusion":
            _python(config, tool, turns=turns)
        else:
            given.refuse("tools_config", f"{name}: {config['workflow']['name']} cannot use it")
    if turns is not None and config["workflow"]["name"] == "multi_turn":
        put(config, "workflow.max_turns", turns + 1)  # so many calls, and then the answer


def _search(config: Tree, tool: dict[str, Any]) -> None:
    put(config, "environment.url", str(tool.get("base_url", "")).removesuffix("/retrieve"))
    put(config, "environment.topk", tool.get("topk", 3))
    put(config, "environment.deadline_s", float(tool.get("timeout", 30)))


def _python(config: Tree, tool: dict[str, Any], *, turns: int | None) -> None:
    wall_s = float(tool.get("timeout", 10))
    for agent in config["team"].values():
        if "tools" not in agent:
            continue
        agent["tools"]["use"] = [{"name": "python", "wall_s": wall_s, "url": tool["base_url"]}]
        agent["tools"]["timeout_s"] = wall_s + 10.0
        if turns is not None:
            agent["tools"]["max_calls"] = max(1, turns - 1)
