"""Translates MARTI's agents and workflow, with their names and prompts."""

from __future__ import annotations

import yaml

from rolecall.config.load import find
from rolecall.core.errors import ConfigError, nearest
from rolecall.core.json_types import JsonObject
from rolecall.importers.keys import Given, OwnValue, Tree, is_unknown, set_key
from rolecall.importers.marti_flows import (
    ALONE,
    CODER,
    DEBATE,
    MIXTURE,
    TOOLS,
    TREE,
    WITH_MEMORY,
    Flow,
    find_flow,
)
from rolecall.importers.marti_judge import ARGS as JUDGE_ARGS
from rolecall.importers.marti_judge import JUDGE, set_judge_policy
from rolecall.importers.marti_prompts import BOXED, CODE, ROUNDS, read_template
from rolecall.importers.marti_tree import TREE_ARGS, build_tree, works_on

AGENT_KEYS = ("role", "pretrain", "is_tuning", "chat_template", "system_prompt", "code_execution",
              "search_execution", "save_path", "ckpt_path", "is_api_model", "model_name",
              "is_reasoning_model")  # fmt: skip
SUFFIX = "add_prompt_suffix"  # of version 1, behind each question
# Without a list of agents one of the defaults speaks.
PLAYED_ALONE = (ALONE, CODER, TOOLS, *WITH_MEMORY)


def build_team(given: Given, config: Tree) -> Flow | None:
    """Set the workflow, its agents and their policies; return the workflow, None if unknown."""
    spelt = "workflow_func_path" if given["workflow_func_path"] else "agent_workflow"
    agents = _agents(given)
    flow = find_flow(given, spelt, {str(agent.get("role")) for _, agent in agents})
    if flow is None:
        given.mark_missing(config, "workflow.name", "how the agents talk")
        given.mark_missing(config, "environment.name", "what they work on")
        _silence_judge(given)
        return None
    if spelt == "workflow_func_path":
        given.silence(["agent_workflow"], "workflow_func_path says it")
    config["workflow"] = {"name": flow.name, **flow.fixed}
    if not agents and flow in PLAYED_ALONE:
        agents = [("agent", {"role": "generator"})]
        given.silence(["agents"], "one agent with the keys of all")
    elif not agents:
        given.refuse("agents", "no agents are given; they stand in the YAML of --config-name")
    judges = [agent for _, agent in agents if flow.judged and agent.get("role") == JUDGE]
    agents = [(name, agent) for name, agent in agents if agent not in judges]
    shares = given["shared_agents"]
    if flow in WITH_MEMORY:
        shares = shares or len(agents) == 1
        agents = _with_memory(given, agents)
    played = [flow.roles.get(str(agent.get("role")), "") for _, agent in agents]
    for number, (name, agent) in enumerate(agents):
        ours = played[number] + (str(number) if played.count(played[number]) > 1 else "")
        policy = next(iter(config["policies"]), ours) if shares else ours
        _agent(given, config, flow, name=name, ours=ours, policy=policy, agent=agent)
    if flow.judged:
        set_judge_policy(given, config, judges[0] if judges else {})
    _workflow_args(given, config, flow)
    if flow is DEBATE:
        _ask_by_round(given, config, agents, in_code=spelt == "workflow_func_path")
    if agents and not any(agent.get("trainable", True) for agent in config["team"].values()):
        if not any("base" in policy for policy in config["policies"].values()):
            given.silence(["pretrain"], "every agent speaks through an API")
        given.warn("agents", "nobody of the team is trained; play it with `rolecall eval FILE`")
    return flow


def _with_memory(
    given: Given, agents: list[tuple[str, JsonObject]]
) -> list[tuple[str, JsonObject]]:
    """Return the solver and the memory: the first two agents, whatever their roles. One is both."""
    if len(agents) > 2:
        given.refuse("agents", "the experience workflow has a solver and a memory, no others")
    roles = ("solver", "memory")
    two = (agents * 2)[:2]
    return [(name, agent | {"role": role}) for (name, agent), role in zip(two, roles, strict=True)]


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
    return agents


def _agent(
    given: Given,
    config: Tree,
    flow: Flow,
    *,
    name: str,
    ours: str,
    policy: str,
    agent: JsonObject,
) -> None:
    role = flow.roles.get(str(agent.get("role")))
    if role is None:
        roles = ", ".join(flow.roles)
        given.refuse("agents", f"{name}: {flow.name} has no {agent.get('role')!r}, only {roles}")
        return
    for key, value in agent.items():
        if key in AGENT_KEYS or value == given[key] or given.keys[key].fate == "not needed":
            continue
        given.own.append(OwnValue(ours, key, value, listed="agents"))
    if agent.get("search_execution"):
        given.refuse("agents", f"{name}: only an agent of the tool workflow searches")
    section: Tree = {"policy": policy} | ({"role": role} if ours != role else {})
    system = _system(given, flow, role=role, agent=agent)
    if system:
        section["system"] = system
    elif given["chat_template"]:
        given.silence(["chat_template"], "it shows the task alone")
    if not agent.get("is_tuning", given["is_tuning"] if "is_tuning" in given.keys else True):
        section["trainable"] = False
    if agent.get("code_execution") or role in flow.executors:
        uses = "world" if flow.environment == "data_science" else "python"
        set_key(section, "tools", {"use": [{"name": uses}], "format": "code"})
    config["team"][ours] = section
    if agent.get("is_api_model"):
        _speak_by_api(given, config, name=name, policy=policy, agent=agent, section=section)
        return
    base = agent.get("pretrain", given["pretrain"])
    if base is None or is_unknown(base):
        given.mark_missing(config, f"policies.{policy}.base", "the model")
    else:
        set_key(config, f"policies.{policy}.base", base)


def _speak_by_api(
    given: Given, config: Tree, *, name: str, policy: str, agent: JsonObject, section: Tree
) -> None:
    """Let an agent speak through an API: it is not trained."""
    section["trainable"] = False
    engine: Tree = {"name": "openai", "model": agent.get("model_name", given["model_name"])}
    if given["api_base_url"]:
        engine["url"] = given["api_base_url"]
    config["policies"][policy] = {"engine": engine}
    if not engine["model"]:
        given.refuse("agents", f"{name}: is_api_model without model_name")


def _system(given: Given, flow: Flow, *, role: str, agent: JsonObject) -> str:
    """Return an agent's system prompt: what its template says, else one of ours."""
    template = agent.get("chat_template") or given["chat_template"]
    if flow is TREE:
        unread = [key for key in ("chat_template", SUFFIX) if key in given.keys]
        given.silence(unread, "the code of the search has prompts of its own")
        return CODE if works_on(given) == "code" else BOXED
    if flow is DEBATE:
        own = agent.get("chat_template") if given["workflow_func_path"] else None
        prompt = read_template(agent.get("system_prompt") or own)
    elif isinstance(template, list) and len(template) > 1:
        given.refuse("agents", f"{agent.get('role')} speaks once a task: one template is enough")
        prompt = read_template(template[:1])
    else:
        prompt = read_template(template)
    if not prompt and flow.recipe:
        recipe = yaml.safe_load(find(flow.recipe).read_text())
        prompt = recipe["team"][role]["system"]
    elif not prompt and not template and flow is not DEBATE and SUFFIX not in given.keys:
        prompt = flow.systems.get(role, BOXED)
    if role == "memory":
        return prompt
    if flow.environment not in ("math", ""):
        given.silence([SUFFIX], f"answers of {flow.environment} stand in no box")
        return prompt
    return "\n\n".join(
        filter(None, [_extra(given, "add_prompt_prefix"), prompt, _extra(given, SUFFIX)])
    )


def _extra(given: Given, key: str) -> str:
    """Return what is put before or behind each question."""
    return read_template(given[key]) if key in given.keys else ""


def _ask_by_round(
    given: Given, config: Tree, agents: list[tuple[str, JsonObject]], *, in_code: bool
) -> None:
    """Set what debaters are told in each round; templates count where the code has none."""
    own = [agent["chat_template"] for _, agent in agents if agent.get("chat_template")]
    template = own[0] if own else given["chat_template"]
    if any(other != template for other in own):
        given.refuse("agents", "debaters are told the same in a round: one chat_template for all")
    if in_code:
        given.silence(["chat_template"], "debate_workflow.py has prompts of its own")
        set_key(config, "workflow.asks", list(ROUNDS))
        return
    listed = template if isinstance(template, list) else [template] if template else []
    if len(listed) < (given["workflow_args.num_rounds"] or 0):
        listed = listed[:1]  # as there: too few templates, and the first one is all
    set_key(config, "workflow.asks", [read_template(one) for one in listed] or list(ROUNDS))
    given.placed["chat_template"] = "workflow.asks"


def _workflow_args(given: Given, config: Tree, flow: Flow) -> None:
    """Options that their workflow reads; others say nothing there, and nothing here."""
    for name in ("num_rounds", "max_others", "contain_self", "memory_reward_style"):
        key = f"workflow_args.{name}"
        value = given[key]
        if name == "num_rounds" and flow is MIXTURE and value is not None:
            set_key(config, "workflow.layers", max(1, value - 1))  # the aggregator is a round there
            given.placed[key] = "workflow.layers"
        elif name not in flow.options:
            given.silence([key], f"{flow.name} has no such option")
        elif value is not None:
            set_key(config, f"workflow.{flow.options[name]}", value)
    if flow is not DEBATE:
        given.silence(["workflow_args.shuffle_responses"], f"{flow.name} has no such option")
    if not flow.judged:
        _silence_judge(given)
    if flow is TREE:
        build_tree(given, config)
    else:
        given.silence([f"workflow_args.{name}" for name in TREE_ARGS], f"{flow.name} has no tree")


def _silence_judge(given: Given) -> None:
    given.silence(
        [f"workflow_args.{name}" for name in JUDGE_ARGS], "of a workflow that judges reviews"
    )
