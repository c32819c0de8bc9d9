"""Gives single agents the values that a file has for them alone.

What a value becomes is what it would become if all agents had it; of the config made so an agent
takes its own part. A value that also changes what agents share is refused.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

from rolecall.core.errors import ConfigError
from rolecall.core.json_types import JsonObject, JsonValue
from rolecall.importers.keys import Given, OwnValue, Tree, get_key, places

# (values that all agents would have) -> what was noted, and the config.
Build = Callable[[JsonObject], tuple[Given, Tree]]
FILTERED = "allow_filtered_sampling"
OF_AGENTS = ("team", "policies", "algorithm", "learner")


def give_own_values(given: Given, config: Tree, build: Build) -> None:
    """Set the values of single agents over those of all; refuse those that agents must share."""
    if not given.own:
        return
    shared = {name: copy.deepcopy(value) for name, value in config.items() if name != "team"}
    is_filtered = shared["rollout"].pop(FILTERED, False)
    algorithms: dict[str, JsonObject] = {}
    sections: dict[str, JsonObject] = {}  # of policies that agents with values of their own have
    for agent in dict.fromkeys(own.agent for own in given.own):
        changed: JsonObject = {}
        for own in given.own:
            if own.agent == agent and _is_own(given, shared, own, build):
                changed[own.key] = own.value
        _, theirs = build(changed)
        is_filtered = is_filtered or theirs["rollout"].get(FILTERED, False)
        section = config["team"][agent] = theirs["team"][agent]
        policy = theirs["policies"][section["policy"]]
        _set_learner(policy, shared.get("learner", {}), theirs.get("learner", {}))
        if sections.setdefault(section["policy"], policy) != policy:
            for own in given.own:
                given.refuse(own.listed, "agents of one policy have unequal values")
        config["policies"][section["policy"]] = policy
        algorithms[agent] = theirs["algorithm"]
    _set_algorithms(config, algorithms)
    if is_filtered:
        config["rollout"][FILTERED] = True
    for own in given.own:
        ours = given.keys[own.listed].ours
        if not any(get_key(config, key) is not None for key in places(config, ours)):
            given.placed[own.listed] = ours.split(".*.")[-1]  # equal for all, so it is said once


def _is_own(given: Given, shared: Tree, own: OwnValue, build: Build) -> bool:
    """Return whether one agent alone can have the value; it is refused otherwise."""
    try:
        theirs, config = build({own.key: own.value})
    except ConfigError as error:
        given.refuse(own.listed, f"{own.agent}: {error}")
        return False
    problem = theirs.problems.get(own.key)
    if problem is not None and own.key not in given.problems:
        given.refuse(own.listed, f"{own.agent}: {own.key}: {problem}")
        return False
    if own.key in theirs.idle and "*" in given.keys[own.listed].ours:
        given.silence([own.listed], theirs.idle[own.key])
    config["rollout"].pop(FILTERED, None)  # it allows what this agent samples
    names = shared.keys() | config.keys() - {"team"}
    changed = [n for n in names if n not in OF_AGENTS and config.get(n) != shared.get(n)]
    if changed:
        because = f"all agents share {', '.join(sorted(changed))}"
        given.refuse(own.listed, f"{own.agent}.{own.key}: {because}")
    return not changed


def _set_learner(policy: Tree, shared: JsonObject, own: JsonObject) -> None:
    """Set the keys in which the learner of a policy differs from that of all."""
    differing: dict[str, JsonValue] = {k: v for k, v in own.items() if shared.get(k) != v}
    if differing:
        policy["learner"] = differing


def _set_algorithms(config: Tree, algorithms: dict[str, JsonObject]) -> None:
    """Set the algorithm of the first trained agent for all, and those of others that differ."""
    trained = [name for name, agent in config["team"].items() if agent.get("trainable", True)]
    options = {name: algorithms.get(name, config["algorithm"]) for name in trained}
    config["algorithm"] = next(iter(options.values()), config["algorithm"])
    for name, algorithm in options.items():
        if algorithm != config["algorithm"]:
            config["team"][name]["algorithm"] = algorithm
