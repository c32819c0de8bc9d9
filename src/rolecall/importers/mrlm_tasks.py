"""Translates the environments of MRLM's YAML: what the agent works on, and in how many turns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rolecall.core.json_types import JsonObject
from rolecall.data.sources import GENERATED
from rolecall.importers.keys import Given, Tree, set_key
from rolecall.importers.mrlm_keys import TASKS

KINDS = {"math": "math", "code": "code"}
# What makes these environments here is a team and a workflow, which MRLM's files do not hold.
ELSEWHERE = {
    "debate": "write a team for environment: debate, workflow: debate, rewards: mrlm_debate",
    "tool": "write a team with tools for environment: tool_use, rewards: mrlm_tool",
}
LISTED, POLICY = "eval_envs", "policy_env"


def build_tasks(given: Given, config: Tree) -> None:
    """Set environment, rewards and workflow.

    MRLM trains on the environments of `eval_envs`, several of which play side by side; its
    `policy_env` is the policy. A file without `eval_envs` trains on `policy_env`.
    """
    environments = _list_environments(given)
    kinds = sorted({str(one.get("env_type")) for one in environments})
    unknown = [kind for kind in kinds if kind not in KINDS]
    if unknown or not kinds:
        key = LISTED if given[LISTED] else f"{POLICY}.env_type"
        because = ELSEWHERE.get(unknown[0]) if unknown else None
        given.refuse(key, because or "write a workflow and an environment for it")
        given.mark_missing(config, "environment.name", "what the agent works on")
        _flow(given, config, attempts=1)
        return
    if len(kinds) > 1:
        parts: Tree = {}
        for kind in kinds:
            parts[kind] = {"name": kind}
            _options(given, parts[kind], [one for one in environments if one["env_type"] == kind])
        config["environment"] = {"name": "mixed", "of": parts}
    else:
        config["environment"] = {"name": kinds[0]}
        _options(given, config["environment"], environments)
        set_key(config, f"rewards.mrlm_{kinds[0]}", _read(environments, "reward_scale"))
    attempts = _read(environments, "max_turns", "max_attempts")
    _flow(given, config, attempts=min(attempts, given["training.max_episode_length"]))
    if attempts > 1:
        for section in [config["environment"], *config["environment"].get("of", {}).values()]:
            if section["name"] == "math":
                section["feedback"] = "verdict"


def _list_environments(given: Given) -> list[JsonObject]:
    """Return the environments that train, each with MRLM's names of options."""
    prefix = f"{POLICY}."
    policy = {key.removeprefix(prefix): value for key, value in given.values.items()
              if key.startswith(prefix)}  # fmt: skip
    is_policy = policy.get("env_type") in (None, "llm")
    environments = [one for one in given[LISTED] or [] if one.get("env_type") or not is_policy]
    if is_policy or any(one.get("env_type") for one in environments):
        given.silence([f"{prefix}{name}" for name in TASKS], "policy_env is the policy, there too")
        given.placed[LISTED] = "environment"
        for one in environments:
            _check_options(given, one)
        return environments
    tests = [_test(given, one) for one in environments]
    if tests and all(tests):
        policy["tests"] = tests
    for name in ("max_turns", "difficulty_range"):
        if given[name] is not None:
            policy[name] = given[name]
    return [policy]


def _check_options(given: Given, environment: JsonObject) -> None:
    for name, value in environment.items():
        key = TASKS.get(name)
        if key is None and name not in ("max_turns", "difficulty_range"):
            given.refuse(LISTED, f"{name}: no key of an environment of MRLM")
        elif key is not None and key.harmless and value not in key.harmless:
            given.refuse(LISTED, f"{name}: {key.because}")


def _test(given: Given, environment: JsonObject) -> str | None:
    """Return the rows of one of `eval_envs`, which must be of the environment that trains."""
    for name, value in environment.items():
        same = value == given[f"{POLICY}.{name}"] if name in TASKS else False
        if name not in ("dataset", "mode") and not same:
            given.refuse(LISTED, f"{name}: {value!r} is not that of policy_env")
    if not environment.get("dataset"):
        given.refuse(LISTED, "without a dataset there is nothing to evaluate")
    return environment.get("dataset")


def _options(given: Given, section: Tree, environments: Sequence[JsonObject]) -> None:
    """Set the options of one kind of environment."""
    first, kind = environments[0], section["name"]
    for name in ("timeout", "max_attempts", "max_turns", "reward_scale", "difficulty_range"):
        if any(one.get(name) != first.get(name) for one in environments):
            given.refuse(LISTED, f"{name}: environments of one kind differ in it")
    rows = [one.get("dataset") for one in environments]
    if not any(rows):
        rows = [given["dataset.path"] or given["dataset.name"]]
    if any(rows):
        names = list(dict.fromkeys(row or GENERATED for row in rows))
        section["train"] = names[0] if len(names) == 1 else names
    if first.get("tests"):
        section["test"] = first["tests"]
    if kind == "code":
        section["score"] = "share"
        section["wall_s"] = _read(environments, "timeout")
    else:
        given.silence([f"{POLICY}.timeout"], "only programs have a time limit")
        if first.get("difficulty_range"):
            low, high = first["difficulty_range"]
            section["level"] = [low, high] if low != high else low


def _read(environments: Sequence[JsonObject], *names: str) -> float:
    """Return the value of the first of several keys that the first environment has."""
    given_values = (environments[0].get(name) for name in names)
    value: Any = next((one for one in given_values if one is not None), TASKS[names[-1]].default)
    return float(value)


def _flow(given: Given, config: Tree, *, attempts: float) -> None:
    role = "actor" if attempts > 1 else "solver"
    config["team"][role] = {"policy": "policy"}
    config["workflow"] = {"name": "single"}
    if attempts > 1:
        config["workflow"] = {"name": "multi_turn", "max_turns": int(attempts)}
