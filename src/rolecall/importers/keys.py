"""Says what becomes of each key of another framework, and holds the values that a file gives.

A key becomes one of ours, is refused because there is no such thing here, or is not needed because
it never changes what is learned. A framework is a table of such keys and a function that builds a
config of ours from their values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rolecall.core.json_types import JsonObject, JsonValue

EDIT = "???"  # OmegaConf's mark of a value that is still to be given
UNKNOWN = "\x00"  # stands around what only the script itself could compute
Tree = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Key:
    """One key of theirs."""

    default: JsonValue = None  # their value where the key is not given
    ours: str = ""  # what it becomes; `*` stands for each agent or policy
    because: str = ""  # why it becomes nothing, or what is not quite the same
    harmless: tuple[JsonValue, ...] | None = None  # refused but for these values; None: not needed
    copied: bool = False  # the value stands there as it is
    secret: bool = False  # it is not shown
    is_tolerated: bool = False  # it is only reported where it would be refused

    @property
    def fate(self) -> str:
        if self.ours:
            return "becomes"
        if self.harmless is None:
            return "not needed"
        return "differs" if self.is_tolerated else "refused"


def becomes(ours: str, default: JsonValue = None, *, but: str = "") -> Key:
    """Return a key whose value stands at ours as it is."""
    return Key(default, ours, but, copied=True)


def read(ours: str, default: JsonValue = None, *, but: str = "") -> Key:
    """Return a key that `build` reads to say what stands at ours."""
    return Key(default, ours, but)


def refuse(because: str, *harmless: JsonValue, default: JsonValue = None) -> Key:
    """Return a key without counterpart; nothing is lost if its value is one of `harmless`."""
    return Key(default, because=because, harmless=(None, *harmless))


def report(because: str, *harmless: JsonValue, default: JsonValue = None) -> Key:
    """Return a key without counterpart, of which the config is nearly the same without it."""
    return Key(default, because=because, harmless=(None, *harmless), is_tolerated=True)


def ignore(because: str, *, secret: bool = False) -> Key:
    """Return a key that has no counterpart and never changes what is learned."""
    return Key(because=because, secret=secret)


@dataclass(frozen=True, slots=True)
class OwnValue:
    """A value that a file gives a single agent."""

    agent: str  # ours
    key: str  # theirs, of which the agent has a value of its own
    value: JsonValue
    listed: str  # their key that holds it


@dataclass(slots=True)
class Given:
    """The keys of a file, and what `build` found out about them."""

    values: JsonObject
    keys: dict[str, Key]
    steps: int | None = None  # that the user asks for
    problems: dict[str, str] = field(default_factory=dict)  # their key -> why it is refused
    idle: dict[str, str] = field(default_factory=dict)  # their key -> why it says nothing here
    edits: dict[str, str] = field(default_factory=dict)  # our key -> what is to be filled in
    placed: dict[str, str] = field(default_factory=dict)  # their key -> ours, if not the table's
    notes: dict[str, str] = field(default_factory=dict)  # their key -> what is not quite the same
    warnings: dict[str, str] = field(
        default_factory=dict
    )  # their key -> what differs because of it
    own: list[OwnValue] = field(default_factory=list)  # that single agents have

    def __getitem__(self, name: str) -> Any:
        """Return the value that is in force: the file's, else their default."""
        return self.values[name] if name in self.values else self.keys[name].default

    def get(self, name: str) -> Any:
        """Return the value of the file, or None."""
        return self.values.get(name)

    def refuse(self, name: str, because: str) -> None:
        """Say that the value of a key has no counterpart."""
        self.problems.setdefault(name, because)

    def choose(self, name: str, known: dict[Any, Any], because: str) -> Any:
        """Return our counterpart of a value; None, and the key is refused, where there is none."""
        value = known.get(self[name]) if not isinstance(self[name], dict | list) else None
        if value is None:
            self.refuse(name, f"{because}; known: {', '.join(map(str, known))}")
        return value

    def warn(self, name: str, because: str) -> None:
        """Say in the file that is made that it differs because of a key."""
        self.warnings.setdefault(name, because)

    def silence(self, names: Iterable[str], because: str) -> None:
        """Say that keys have no effect in this file, there as here."""
        self.idle |= dict.fromkeys(names, because)

    def mark_missing(self, config: Tree, ours: str, what: str) -> None:
        """Leave a mark where the user must write a value."""
        set_key(config, ours, EDIT)
        self.edits[ours] = what


@dataclass(frozen=True, slots=True)
class Framework:
    """One system that configs come from."""

    name: str
    title: str
    marks: tuple[str, ...]  # texts that its files hold and no other's
    keys: dict[str, Key]
    build: Callable[[Given], Tree]
    own_marks: tuple[str, ...] = ()  # those that what it is built on does not have
    differs: tuple[str, ...] = ()  # what no key says, and is not the same here
    # its own spellings of keys -> those of the table
    tidy: Callable[[JsonObject], JsonObject] = dict
    # (values of a file, the file, all files) -> its values with those of the files that it names
    follow: Callable[[JsonObject, Path, Sequence[Path]], JsonObject] | None = None


def is_unknown(value: JsonValue) -> bool:
    """Return whether a value is computed by their script, so that nobody here can say it."""
    if isinstance(value, list):
        return any(map(is_unknown, value))
    return isinstance(value, str) and UNKNOWN in value


def show_value(value: JsonValue) -> str:
    """Return a value as people read it."""
    return str(value).replace(UNKNOWN, "")


def set_truncation(config: Tree, *, max_tokens: int, side: str) -> None:
    """Cut the prompts of every agent whose policy has a tokenizer."""
    for agent in config["team"].values():
        if "model" not in config["policies"].get(agent["policy"], {}).get("engine", {}):
            agent["truncation"] = {"max_tokens": max_tokens, "side": side}


def set_key(config: Tree, ours: str, value: JsonValue) -> None:
    """Set a dotted key: put({}, "a.b", 1) makes {"a": {"b": 1}}."""
    *path, last = ours.split(".")
    for key in path:
        config = config.setdefault(key, {})
    config[last] = value


def places(config: Tree, ours: str) -> list[str]:
    """Return the keys that a pattern stands for: `policies.solver.base` and others for
    `policies.*.base`.

    A policy that nobody trains has no optimizer and no adapter, and speaks as its file says. An
    agent without tools has none of their options.
    """
    before, star, after = ours.partition("*")
    if not star:
        return [ours]
    names = list(get_key(config, before.rstrip(".")) or {})
    if before == "policies." and after.startswith((".optimizer", ".adapter", ".template")):
        names = trained_policies(config)
    if before == "team." and after.startswith(".tools."):
        names = [name for name in names if "tools" in config["team"][name]]
    return [f"{before}{name}{after}" for name in names]


def trained_policies(config: Tree) -> list[str]:
    """Return the policies that a trainable agent speaks with, in their order."""
    users = {a["policy"] for a in config["team"].values() if a.get("trainable", True)}
    return [name for name in config["policies"] if name in users]


def get_key(config: Tree, ours: str) -> Any:
    """Return the value at a dotted key, or None."""
    value: JsonValue = config
    for key in ours.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value
