"""Translates MARTI's tools: a search server is the environment's, an interpreter an agent's."""

from __future__ import annotations

from rolecall.core.errors import ConfigError, nearest
from rolecall.core.json_types import JsonObject
from rolecall.importers.keys import EDIT, Given, Tree, get_key, is_unknown, set_key, show_value
from rolecall.importers.marti_flows import TREE, Flow
from rolecall.importers.marti_tree import works_on

TOOL_KEYS = ("type", "base_url", "timeout", "topk", "schema_path", "enable_rate_limiting",
             "rate_limit", "language")  # fmt: skip
# What their tasks are called -> our environment.
TASKS = {
    "math": "math",
    "aime": "math",
    "search_r1": "search",
    "gaia": "tool_use",
    "code": "code",
    "dsbench": "data_science",
}


def build_environment(given: Given, config: Tree, flow: Flow, *, task: str, spelt: str) -> None:
    """Set the environment: the workflow's own, else that of a task."""
    if flow is TREE:
        name = TASKS.get(works_on(given), EDIT)
    elif flow.environment:
        name = flow.environment
    elif given.keys.get("agent_func_path") and "code_step" in str(given["agent_func_path"]):
        name = "code"
    else:
        types = [tool.get("type") for tool in (given["tools_config.tools"] or {}).values()]
        name = TASKS.get(task, "search" if "search_r1" in types else EDIT)
    set_key(config, "environment.name", name)
    if name == EDIT:
        given.refuse(spelt, f"no environment for {task!r}; known: {', '.join(TASKS)}")
        given.mark_missing(config, "environment.name", "what they work on")
    if spelt in given.keys and name == flow.environment:
        given.silence([spelt], "told by the workflow")


def build_tools(given: Given, config: Tree, flow: Flow) -> None:
    """Give the tools to the agents that run code, or all of them to those that may call any."""
    users = {name: agent for name, agent in config["team"].items() if "tools" in agent}
    if flow.offers:
        roles = {name: agent.get("role", name) for name, agent in config["team"].items()}
        users = {name: config["team"][name] for name in roles if roles[name] in flow.offers}
        _offer(given, config, users)
    elif not flow.environment:
        given.silence(["tools_config.tools"], f"{flow.name} without tools does not read it")
    else:
        for name, tool in _tools(given).items():
            if tool.get("type") == "sandbox_fusion" and users:
                _set_sandbox(given, config, users, name=name, tool=tool)
            else:
                given.refuse("tools_config.tools", f"{name}: nobody in this team can use it")
    if not any("tools" in agent for agent in users.values()):
        given.silence(["tools_config.max_turns", "tools_config.timeout"], "nobody uses tools")
        return
    for name, agent in users.items():
        own = flow.turns.get(agent.get("role", name))
        turns = given[f"workflow_args.{own}" if own else "tools_config.max_turns"]
        if turns is not None:
            agent["tools"]["max_calls"] = max(1, turns - 1)  # so many calls, and then the answer
    if flow.turns:
        given.silence(["tools_config.max_turns"], "workflow_args say it of each agent")
    else:
        given.placed["tools_config.max_turns"] = "team.*.tools.max_calls"


def check_turns(given: Given, flow: Flow) -> None:
    """Refuse several turns of an agent without tools, which there may speak on and on."""
    for role, key in flow.turns.items():
        name = f"workflow_args.{key}"
        if role not in flow.executors and given[name] != 1:
            given.refuse(name, f"the {role} has no tools, so it speaks once")
    others = [
        name
        for name in given.keys
        if name.endswith("_max_turns")
        and name.removeprefix("workflow_args.") not in flow.turns.values()
    ]
    given.silence(others, f"{flow.name} has no such agent")


def _tools(given: Given) -> dict[str, JsonObject]:
    """Return the tools by name, without those of no type, which are not registered there either.

    Raises ConfigError for a key that no tool has.
    """
    tools = given["tools_config.tools"] or {}
    for name, tool in tools.items():
        for key in tool:
            if key not in TOOL_KEYS:
                where = f"tools_config.tools.{name}.{key}"
                raise ConfigError(f"{where}: no key of MARTI; {nearest(key, list(TOOL_KEYS))}")
    typeless = [name for name, tool in tools.items() if "type" not in tool]
    if typeless:
        given.notes["tools_config.tools"] = f"without {', '.join(typeless)}: no type, as there"
    return {name: tool for name, tool in tools.items() if name not in typeless}


def _offer(given: Given, config: Tree, users: dict[str, Tree]) -> None:
    """Offer all tools to these agents, in the form of their model's chat template."""
    offered: list[JsonObject] = []
    for name, tool in _tools(given).items():
        if tool.get("type") == "search_r1" and config["environment"]["name"] == "search":
            _set_search(given, config, tool)
            offered.append({"name": "world"})
        elif tool.get("type") == "search_r1":
            offered.append({"name": "search", "topk": tool.get("topk", 3), **_url(given, tool)})
        elif tool.get("type") == "sandbox_fusion":
            wall_s = float(tool.get("timeout", 30))
            offered.append({"name": "python", "wall_s": wall_s, **_url(given, tool)})
        else:
            given.refuse("tools_config.tools", f"{name}: no tool of the type {tool.get('type')!r}")
    if given.keys.get("tools_config.mcp_url") and given["tools_config.mcp_url"]:
        offered.append({"name": "mcp", "url": given["tools_config.mcp_url"]})
    for agent in users.values() if offered else []:
        agent["tools"] = {"use": offered, "format": "native"}


def _set_search(given: Given, config: Tree, tool: JsonObject) -> None:
    url = str(tool.get("base_url", ""))
    if is_unknown(url):
        given.mark_missing(config, "environment.url", f"the search server, {show_value(url)} there")
    else:
        address = url.removesuffix("/retrieve").removesuffix("/retrieval")
        set_key(config, "environment.url", address)
    set_key(config, "environment.topk", tool.get("topk", 3))
    set_key(config, "environment.deadline_s", float(tool.get("timeout", 15)))


def _set_sandbox(
    given: Given, config: Tree, users: dict[str, Tree], *, name: str, tool: JsonObject
) -> None:
    """Set where the agents' programs run: the environment's sandbox, or the tool python."""
    wall_s = float(tool.get("timeout", 30))
    if is_unknown(tool.get("base_url")):
        url_key = (
            "environment.url" if "data_science" in str(config["environment"]) else "python.url"
        )
        given.warn(
            "tools_config.tools",
            f"{name}: the script computes the address of its SandboxFusion "
            f"({show_value(tool['base_url'])}); programs run in a sandbox of this machine, or on "
            f"a server that {url_key} names",
        )
    if get_key(config, "environment.name") == "data_science":
        set_key(config, "environment.wall_s", wall_s)
        for key, value in _url(given, tool).items():
            set_key(config, f"environment.{key}", value)
        given.placed["tools_config.tools"] = "environment"
        return
    for agent in users.values():
        agent["tools"]["use"] = [{"name": "python", "wall_s": wall_s, **_url(given, tool)}]


def _url(given: Given, tool: JsonObject) -> JsonObject:
    """Return the address of a tool's server; none, if the script computes it: then it is local."""
    url = tool.get("base_url")
    return {} if url is None or is_unknown(url) else {"url": str(url)}
