"""Finds the lines in which the keys of another framework's files stand."""

from __future__ import annotations

import re
from collections.abc import Iterable

import yaml

from rolecall.config.key_locations import KeyLocations, number_keys

SETTING = re.compile(r"(?<![\w.-])[+~]*(?:--)?([A-Za-z][\w.-]*)(?==)|(?<!\S)--([A-Za-z][\w.-]*)")


def locate_keys(texts: Iterable[tuple[str, str]], overrides: list[str]) -> KeyLocations:
    """Return where keys stand in texts of YAML or shell, each given with its name.

    `a.b=1` in line 3 of run.sh -> {"a.b": "run.sh:3"}; of several places the last one counts.
    """
    lines: dict[str, str] = {}
    last = ""
    for name, text in texts:
        last = name
        lines |= {key: f"{name}:{number}" for key, number in _number_lines(text).items()}
    overridden = frozenset(override.partition("=")[0] for override in overrides)
    return KeyLocations(last, lines, overridden)


def _number_lines(text: str) -> dict[str, int]:
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError):
        root = None
    if isinstance(root, yaml.MappingNode):
        return number_keys(root)
    return {
        match[1] or match[2]: number
        for number, line in enumerate(text.splitlines(), 1)
        if not line.lstrip().startswith("#")
        for match in SETTING.finditer(line)
    }
