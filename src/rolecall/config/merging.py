"""Lays one mapping of a config over another, as `extends`, stages and the command line do."""

from __future__ import annotations

import re
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf

NAMED = ("workflow", "environment", "algorithm", "engine", "learner", "cluster")


# A reward of a file is named by its path, whose dots separate no keys.
REWARD = re.compile(r"^((?:.*\.)?rewards)\.([^=]*?:[A-Za-z_]\w*)((?:\.\w+)*=.*)$", re.DOTALL)


def dotlist(overrides: list[str]) -> DictConfig:
    """Return the mapping that overrides are; `rewards.my/file.py:name=1` has two keys."""
    return OmegaConf.from_dotlist([REWARD.sub(r"\1[\2]\3", one) for one in overrides])


def over(below: DictConfig, found: DictConfig) -> DictConfig:
    """Lay `found` over `below`: mappings are merged key by key, everything else is replaced.

    A section with another name starts anew: the options of the first are not its own.
    """
    for key in NAMED:
        if _section_name(found.get(key)) not in (None, _section_name(below.get(key))):
            below.pop(key, None)
    return merge(_whole(below), _whole(found))


def merge(below: DictConfig, above: DictConfig) -> DictConfig:
    """Return `above` merged into `below`; a list replaces a mapping, and a mapping a list.

    OmegaConf refuses these without a key, so they are left to the check of the whole config.
    """
    _drop_other_containers(below, above)
    merged = OmegaConf.merge(below, above)
    assert isinstance(merged, DictConfig)
    return merged


def _drop_other_containers(below: DictConfig, above: DictConfig) -> None:
    for key in above:
        if key not in below or not all(_is_plain(config, key) for config in (below, above)):
            continue
        old, new = below[key], above[key]
        if isinstance(old, DictConfig) and isinstance(new, DictConfig):
            _drop_other_containers(old, new)
        elif {type(old), type(new)} == {DictConfig, ListConfig}:
            below.pop(key)


def _is_plain(config: DictConfig, key: Any) -> bool:
    """Return whether a value can be read without another one: no `???` and no `${...}`."""
    return not (OmegaConf.is_missing(config, key) or OmegaConf.is_interpolation(config, key))


def _section_name(section: DictConfig | str | None) -> str | None:
    return section.get("name") if isinstance(section, DictConfig) else section


def _whole(config: DictConfig) -> DictConfig:
    """Return `algorithm: drmas` as a mapping, which can be merged with options."""
    for key in NAMED:
        if isinstance(config.get(key), str):
            config[key] = {"name": config[key]}
    return config
