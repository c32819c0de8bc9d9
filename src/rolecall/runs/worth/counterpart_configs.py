"""Configs of runs that train what could take a team's place: one agent, or other weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rolecall.config.schema import Config, Named
from rolecall.core.errors import ConfigError
from rolecall.setup.plan import resolve_workflow

Sections = dict[str, Any]
LONE_REWARDS = ("correct", "format")  # rewards that do not depend on a team
SHARED = "team"  # the policy that all agents share


def make_alone(
    config: Config, agent: str, *, workflow: str, steps: int, rows: Path | None = None
) -> Config:
    """Return the config of one agent that learns alone from where its policy began.

    It trains with GRPO, or imitates the `rows`. Raises ConfigError where nobody trains it.
    """
    policy = config.team[agent].policy
    _check_trained(config, agent)
    role = resolve_workflow(Named(name=workflow)).roles[0]
    sections = _sections(config)
    lone = sections["team"][agent] | {"role": None, "algorithm": None, "cross_policy": None}
    rewards = {name: sections["rewards"][name] for name in LONE_REWARDS if name in config.rewards}
    sections |= {
        "team": {role: lone},
        "policies": {policy: sections["policies"][policy]},
        "workflow": {"name": workflow},
        "rewards": rewards or {"correct": 1.0},
        "algorithm": {"name": "grpo" if rows is None else "sft"},
        "critics": {},
        "prices": {name: price for name, price in sections["prices"].items() if name == policy},
    }
    if rows is not None:
        lone["invalid_penalty"] = 0.0
        number = sum(1 for _ in rows.open())
        sections["rollout"] |= {
            "data": str(rows.resolve()),
            "groups": min(config.rollout.groups, number),
            "group_size": 1,
        }
    return _finish(sections, steps)


def make_shared(config: Config) -> Config:
    """Return the config in which all trained agents share one policy.

    Raises ConfigError where their policies differ in more than their name.
    """
    sections = _sections(config)
    names = sorted(config.trained_policies)
    if len(names) < 2:
        raise ConfigError(f"{names[0]} is the only policy that is trained")
    first = sections["policies"][names[0]]
    for name in names[1:]:
        if sections["policies"][name] != first:
            raise ConfigError(f"policies {names[0]} and {name} differ in base or settings")
    for agent in sections["team"].values():
        if agent["policy"] in names:
            agent["policy"] = SHARED
    for section in ("policies", "prices"):
        renamed = {SHARED if name in names else name: v for name, v in sections[section].items()}
        sections[section] = renamed
    return _finish(sections, config.trainer.steps)


def make_own(config: Config) -> Config:
    """Return the config in which each trained agent has a policy of its own."""
    sections = _sections(config)
    policies: Sections = {}
    prices: Sections = {}
    for name, agent in sections["team"].items():
        shared = agent["policy"]
        if shared in config.trained_policies:
            agent["policy"] = name
        policies[agent["policy"]] = sections["policies"][shared]
        if shared in sections["prices"]:
            prices[agent["policy"]] = sections["prices"][shared]
    sections["policies"], sections["prices"] = policies, prices
    return _finish(sections, config.trainer.steps)


def is_shared(config: Config) -> bool:
    """Return whether several trained agents share a policy."""
    policies = [agent.policy for agent in config.team.values() if agent.trainable]
    return len(set(policies)) < len(policies)


def _check_trained(config: Config, agent: str) -> None:
    if config.team[agent].policy not in config.trained_policies:
        raise ConfigError(f"nobody trains {agent}'s policy {config.team[agent].policy}")


def _sections(config: Config) -> Sections:
    sections: Sections = config.model_dump(mode="json", exclude={"output", "trackers"})
    return sections


def _finish(sections: Sections, steps: int) -> Config:
    """Return the config without evaluations of its own: the arms are played on the same tasks."""
    sections["trainer"]["steps"] = steps
    sections["evaluation"] = {"tasks": 0}
    return Config.model_validate(sections)
