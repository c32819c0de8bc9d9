"""Lays one mapping of a config over another, as `extends`, stages and the command line do."""

from __future__ import annotations

import re
from typing import Any

from omegaconf import DictConfig, OmegaConf

NAMED = ("workflow", "environment", "algorithm", "engine", "learner", "cluster")


# A reward of a file is named by its path, whose dots separate no keys.
REWARD = re.compile(r"^((?:.*\.)?rewards)\.([^=]*?:[A-Za-z_]\w*)((?:\.\w+)*=.*)$", re.DOTALL)


def dotlist(overrides: list[str]) -> DictConfig:
    """Return the mapping that overrides are; `rewards.my/file.py:name=1` has two keys."""
    return OmegaConf.from_dotlist([REWARD.sub(r"\1[\2]\3", one) for one in overrides])


def over(below: DictConfig, found: DictConfig) -> DictConfig:
    """`found` over `below`: mappings are merged key by key, all else is replaced.

    A section with another name starts anew: the options of the first are not its own.
    """
    for key in NAMED:
        if _name_of(found.get(key)) not in (None, _name_of(below.get(key))):
            below.pop(key, None)
    merged = OmegaConf.merge(_whole(below), _whole(found))
    assert isinstance(merged, DictConfig)
    return merged


def _name_of(section: Any) -> Any:
    return section.get("name") if isinstance(section, DictConfig) else section


def _whole(config: DictConfig) -> DictConfig:
    """`algorithm: drmas` as a mapping, which one with options can be merged with."""
    for key in NAMED:
        if isinstance(config.get(key), str):
            config[key] = {"name": config[key]}
    return config
