"""Finds where the keys of a config stand: in which line of its file, or on the command line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import yaml
from omegaconf import OmegaConf

from rolecall.config.merging import dotlist

_KEY = re.compile(r"[^\s:,;]+")


@dataclass(frozen=True, slots=True)
class KeyLocations:
    """The lines of a file's keys, and the keys that the command line gave."""

    file: str = ""
    lines: dict[str, str] = field(default_factory=dict)  # dotted key -> `team.yaml:12`
    overridden: frozenset[str] = frozenset()

    def for_stage(self, number: int) -> KeyLocations:
        """Return the locations of one stage, with a stage's own keys where the stage has them."""
        prefix = f"stages.{number}."
        own = {
            key.removeprefix(prefix): line
            for key, line in self.lines.items()
            if key.startswith(prefix)
        }
        if "from" in own:
            own["rollout.data"] = own["from"]
        return replace(self, lines=self.lines | own)

    def locate(self, problem: str) -> str:
        """Put the place of a problem's key before it: `team.yaml:12: learner.dtype: ...`."""
        match = _KEY.match(problem)
        key = re.sub(r"\[(\d+)\]", r".\1", match[0]) if match and self.file else ""
        while key:
            if key in self.overridden:
                return f"command line: {problem}"
            if key in self.lines:
                return f"{self.lines[key]}: {problem}"
            key = key.rpartition(".")[0]
        return f"{self.file}: {problem}" if self.file else problem


def read_key_locations(files: dict[str, Path], overrides: list[str]) -> KeyLocations:
    """Read where each key of YAML files stands, of which later ones override earlier ones.

    Their keys are what messages call the files.
    """
    lines: dict[str, str] = {}
    for name, path in files.items():
        root = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
        lines |= {key: f"{name}:{line}" for key, line in number_keys(root).items()}
    overridden = (override.partition("=")[0] for override in overrides)
    replaced = set(_replaced_keys(OmegaConf.to_container(dotlist(overrides))))
    kept = {key: line for key, line in lines.items() if replaced.isdisjoint(_parents(key))}
    return KeyLocations(list(files)[-1], kept, frozenset([*overridden, *replaced]))


def _replaced_keys(value: object, prefix: str = "") -> Iterator[str]:
    """Yield the dotted keys that overrides give a new value, as in `rewards={correct: 1}`.

    A mapping is merged into the file's, so its own key is not among them unless it is empty.
    """
    if isinstance(value, dict) and (value or not prefix):
        for key, inner in value.items():
            yield from _replaced_keys(inner, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix


def _parents(key: str) -> list[str]:
    """Return the keys above a key: "a.b.c" -> ["a.b", "a"]."""
    parents = []
    while key := key.rpartition(".")[0]:
        parents.append(key)
    return parents


def number_keys(root: yaml.Node | None) -> dict[str, int]:
    """Return the lines of the keys of a YAML document: {"a": 1, "a.b": 2, "a.b.0": 2}."""
    lines: dict[str, int] = {}
    _note(root, "", lines)
    return lines


def _note(node: yaml.Node | None, prefix: str, lines: dict[str, int]) -> None:
    pairs: list[tuple[str, yaml.Node, yaml.Node]] = []
    if isinstance(node, yaml.MappingNode):
        pairs = [(str(key.value), key, value) for key, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        pairs = [(str(number), value, value) for number, value in enumerate(node.value)]
    for name, key, value in pairs:
        lines[f"{prefix}{name}"] = key.start_mark.line + 1
        _note(value, f"{prefix}{name}.", lines)
