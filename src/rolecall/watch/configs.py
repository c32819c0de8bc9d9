"""Reads a run's config.yaml as plain data: also one of another version, or a damaged one."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml

from rolecall.core.json_types import JsonObject
from rolecall.watch.clean_json import clean, load_object
from rolecall.watch.models import AgentRow, Missing

Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True)
class RunConfig:
    """The keys of a run, and what is missing of them."""

    text: str = ""
    keys: JsonObject = field(default_factory=dict)
    missing: list[Missing] = field(default_factory=list)

    def get(self, *path: str, default: Any = None) -> Any:
        """Return the value of a key, such as `("trainer", "steps")`."""
        value: Any = self.keys
        for name in path:
            if not isinstance(value, dict) or value.get(name) is None:
                return default
            value = value[name]
        return value

    def read_part_name(self, key: str) -> str:
        """Return the name of an algorithm, environment or workflow: `grpo`, `{name: grpo}`."""
        value = self.get(key)
        name = value.get("name") if isinstance(value, dict) else value
        return name if isinstance(name, str) else ""

    @property
    def steps(self) -> int:
        """Steps that the run is to do; 0 where it does not say."""
        steps = self.get("trainer", "steps", default=0)
        return steps if isinstance(steps, int) else 0

    def team(self) -> list[AgentRow]:
        """Return the agents, as far as the config is readable."""
        agents = self.get("team", default={})
        if not isinstance(agents, dict):
            return []
        return [
            self._agent(str(name), agent if isinstance(agent, dict) else {})
            for name, agent in agents.items()
        ]

    def _agent(self, name: str, agent: JsonObject) -> AgentRow:
        policy = str(agent.get("policy", ""))
        rank = self.get("policies", policy, "adapter", "rank")
        return AgentRow(
            agent=name,
            policy=policy,
            base=str(self.get("policies", policy, "base", default="")),
            is_trained=bool(agent.get("trainable", True)),
            adapter="" if rank is None else f"rank {rank}",
        )

    def trained_policies(self) -> dict[str, str]:
        """Return the policies of the agents that are trained, by agent."""
        return {row.agent: row.policy for row in self.team() if row.is_trained}


def read_config(folder: Path) -> RunConfig:
    """Return the config of a run folder; an empty one, with the reason, where it cannot be read."""
    try:
        text = (folder / "config.yaml").read_text(errors="replace")
    except FileNotFoundError:
        return RunConfig(missing=[Missing(what="config.yaml", why="it is not there")])
    except OSError as error:
        return RunConfig(missing=[Missing(what="config.yaml", why=error.strerror or "unreadable")])
    try:
        keys = clean(yaml.load(text, Loader))
    except (yaml.YAMLError, ValueError, RecursionError):
        why = "it is not YAML that can be read"
        return RunConfig(text=text, missing=[Missing(what="config.yaml", why=why)])
    if not isinstance(keys, dict):
        why = "it has no keys"
        return RunConfig(text=text, missing=[Missing(what="config.yaml", why=why)])
    return RunConfig(text=text, keys=keys)


def flatten_keys(keys: JsonObject, prefix: str = "") -> dict[str, str]:
    """Return {dotted key: value as text}; an empty section counts as a value."""
    flat: dict[str, str] = {}
    for name, value in keys.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict) and value:
            flat |= flatten_keys(value, f"{key}.")
        else:
            flat[key] = show_value(value)
    return flat


def show_value(value: Any) -> str:
    """Return a value as YAML writes it in one line."""
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, bool | int | float):
        return _show_scalar(value)
    return _dump(value)


@lru_cache(maxsize=4096, typed=True)
def _show_scalar(value: float | None) -> str:
    """Return a value that many configs have, which YAML writes slowly."""
    return _dump(value)


def _dump(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, width=10_000)
    return text.removesuffix("...\n").strip()


def read_chapters(folder: Path) -> list[str]:
    """Return in sentences what changed when a run went on with other keys."""
    try:
        lines = (folder / "chapters.jsonl").read_text(errors="replace").splitlines()
    except OSError:
        return []
    chapters = []
    for line in lines:
        record = load_object(line)
        changes = record.get("changes")
        if isinstance(changes, dict):
            shown = [
                f"{key} {show_value(pair[0])} -> {show_value(pair[1])}"
                for key, pair in changes.items()
                if isinstance(pair, list) and len(pair) == 2
            ]
            chapters.append(f"after step {record.get('after_step', '?')}: {', '.join(shown)}")
    return chapters
