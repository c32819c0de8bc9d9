"""Finds where the keys of a config stand: in which line of its file, or on the command line."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

import yaml

_KEY = re.compile(r"[^\s:,;]+")


@dataclass(frozen=True, slots=True)
class Places:
    """The lines of a file's keys, and the keys that the command line gave."""

    file: str = ""
    lines: dict[str, int] = field(default_factory=dict)  # dotted key -> line, from 1
    overridden: frozenset[str] = frozenset()

    def located(self, problem: str) -> str:
        """`learner.dtype: ...` -> `team.yaml:12: learner.dtype: ...`."""
        found = _KEY.match(problem)
        key = re.sub(r"\[(\d+)\]", r".\1", found[0]) if found and self.file else ""
        while key:
            if key in self.overridden:
                return f"command line: {problem}"
            if key in self.lines:
                return f"{self.file}:{self.lines[key]}: {problem}"
            key = key.rpartition(".")[0]
        return f"{self.file}: {problem}" if self.file else problem


def places_of(name: str, path: Path, overrides: list[str]) -> Places:
    """Read where each key of a YAML file stands; `name` is what messages call the file."""
    root = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    lines: dict[str, int] = {}
    _note(root, "", lines)
    keys = (override.partition("=")[0] for override in overrides)
    return Places(name, lines, frozenset(keys))


def _note(node: yaml.Node | None, prefix: str, lines: dict[str, int]) -> None:
    pairs: list[tuple[str, yaml.Node, yaml.Node]] = []
    if isinstance(node, yaml.MappingNode):
        pairs = [(str(key.value), key, value) for key, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        pairs = [(str(number), value, value) for number, value in enumerate(node.value)]
    for name, key, value in pairs:
        lines[f"{prefix}{name}"] = key.start_mark.line + 1
        _note(value, f"{prefix}{name}.", lines)
