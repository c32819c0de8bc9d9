"""Translates the keys of another framework into a config, and records what became of each."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field

from pydantic import BaseModel

from rolecall.config import registry
from rolecall.core.errors import ConfigError
from rolecall.core.json_types import JsonObject, JsonValue
from rolecall.importers import drmas, marti, marti_v1, mrlm, trl, verl
from rolecall.importers.keys import (
    EDIT,
    Framework,
    Given,
    Key,
    Tree,
    get_key,
    is_unknown,
    places,
    set_key,
    show_value,
)
from rolecall.importers.own_values import give_own_values

FRAMEWORKS: dict[str, Framework] = {
    module.FRAMEWORK.name: module.FRAMEWORK for module in (mrlm, drmas, marti, marti_v1, verl, trl)
}

# Keys of ours whose text a script may compute: it becomes an edit, or is left out.
TEXTS = (
    "environment.t",
    "environment.url",
    "policies.*.base",
    "output",
    "trackers",
    "team.*.system",
)


COMMON = "grpo"  # its options are those of most algorithms
MOST_SHOWN = 100  # characters of a value in the table
OFF: tuple[object, ...] = (None, False, 0, -1, "", [], {})  # values that ask for nothing


@dataclass(frozen=True, slots=True)
class Line:
    """The fate of one of their keys."""

    key: str
    value: str  # theirs, as it is shown
    fate: str  # becomes, not needed, differs, refused
    said: str  # our key and value, or the reason
    given: bool  # False: it is their default


@dataclass(slots=True)
class Translation:
    """A config of ours, not checked yet, and how it came about."""

    framework: Framework
    config: Tree
    lines: list[Line]
    edits: dict[str, str] = field(default_factory=dict)  # our key -> what is to be filled in

    @property
    def refused_lines(self) -> list[Line]:
        return self.select_lines("refused")

    def select_lines(self, fate: str) -> list[Line]:
        return [line for line in self.lines if line.fate == fate]


def translate(
    values: JsonObject,
    framework: Framework,
    *,
    steps: int | None = None,
) -> Translation:
    """Translate values of another framework. `steps`: length of the run that the user asks for.

    Raises ConfigError for a key that the framework does not have.
    """
    check_known(values, framework)
    theirs, config = _build(values, framework, steps)
    give_own_values(theirs, config, lambda changed: _build(values | changed, framework, steps))
    lines = [_line(name, theirs, config) for name in values]
    lines += [
        _line(name, theirs, config)
        for name, key in framework.keys.items()
        if name not in values and name not in theirs.idle and key.ours and key.default is not None
    ]
    lines = [line for line in lines if line.given or line.fate != "not needed"]
    lines += [
        Line(name, show_value(theirs[name]), "refused", because, given=False)
        for name, because in theirs.problems.items()
        if name not in values and not framework.keys[name].ours
    ]
    lines += [
        Line(name, show_value(theirs[name]), "differs", because, given=name in values)
        for name, because in theirs.warnings.items()
    ]
    return Translation(framework, config, lines, theirs.edits)


def _build(values: JsonObject, framework: Framework, steps: int | None) -> tuple[Given, Tree]:
    """Return the config of these values, without those of single agents, and what was noted."""
    check_types(values, framework)
    theirs = Given(values, framework.keys, steps=steps)
    try:
        config = framework.build(theirs)
    except (TypeError, AttributeError, ValueError, LookupError, ArithmeticError) as error:
        if isinstance(error, ConfigError):
            raise
        computed = sorted(name for name, value in values.items() if is_unknown(value))
        numbers = [
            name for name in computed if isinstance(framework.keys[name].default, int | float)
        ]
        if computed:
            computed = numbers or computed
            what = f"the script computes {', '.join(computed)}; write the values out"
            raise ConfigError(what) from error
        raise ConfigError(f"a value is not what its key takes: {error}") from error
    copied = [name for name, key in framework.keys.items() if key.copied]
    for name in sorted(copied, key=lambda name: name in values):  # what is set beats defaults
        if name not in theirs.idle and theirs[name] is not None:
            for our_key in places(config, framework.keys[name].ours):
                _copy(theirs, config, name, our_key)
    _check_twice(theirs, copied)
    for name in values:
        key = framework.keys[name]
        if (
            key.fate in ("refused", "differs")
            and name not in theirs.idle
            and not _harmless(values[name], key)
        ):
            theirs.refuse(name, key.because)
    return theirs, config


def check_known(values: JsonObject, framework: Framework) -> None:
    unknown = [name for name in values if name not in framework.keys]
    if unknown:
        near = difflib.get_close_matches(unknown[0], framework.keys, n=3, cutoff=0.5)
        hint = f"nearest: {', '.join(near)}" if near else "nothing there is called like it"
        raise ConfigError(f"{unknown[0]}: no key of {framework.title}; {hint}")


def check_types(values: JsonObject, framework: Framework) -> None:
    """Check that numbers and truth values are such and known; raises ConfigError otherwise."""
    for name, value in values.items():
        key = framework.keys[name]
        if is_unknown(value) and key.ours and not key.copied and not key.ours.startswith(TEXTS):
            raise ConfigError(f"{name}: the script computes it ({show_value(value)}); write it out")
        if value is None or is_unknown(value) or not key.ours:
            continue
        if isinstance(key.default, bool) and not isinstance(value, bool):
            raise ConfigError(f"{name}: not true or false (it is {value!r})")
        if isinstance(key.default, int | float) and not isinstance(value, int | float | list):
            raise ConfigError(f"{name}: not a number (it is {value!r})")


def _harmless(value: JsonValue, key: Key) -> bool:
    """Return whether dropping a value changes nothing; 1 and True differ, 1 and 1.0 do not."""
    return any(
        value == other and isinstance(value, bool) == isinstance(other, bool)
        for other in key.harmless or ()
    )


def _copy(given: Given, config: Tree, name: str, place: str) -> None:
    """Put a value in its place, unless the algorithm there has no such option."""
    algorithm = config["algorithm"]["name"]
    option = place.removeprefix("algorithm.")
    if option != place and algorithm == EDIT and option not in _options(COMMON):
        if name in given.values:
            given.refuse(name, "few algorithms have it, and algorithm.name is open")
    elif option != place and algorithm != EDIT and option not in _options(algorithm):
        given.silence([name], f"{algorithm} does not read it")
    elif is_unknown(given[name]):
        given.mark_missing(config, place, f"{name} of the script, {show_value(given[name])}")
    else:
        set_key(config, place, given[name])


def _check_twice(given: Given, copied: list[str]) -> None:
    """Two keys of one meaning must not contradict one another."""
    first_names: dict[str, str] = {}
    for name in copied:
        if name in given.values and name not in given.idle:
            first = first_names.setdefault(given.keys[name].ours, name)
            if given[first] != given[name]:
                given.refuse(name, f"{first} says otherwise")


def _options(algorithm: str) -> set[str]:
    model: type[BaseModel] = registry.resolve("algorithm", algorithm, key="algorithm.name")
    return set(model.model_fields)


def _line(name: str, given: Given, config: Tree) -> Line:
    key = given.keys[name]
    value = "***" if key.secret else show_value(given[name])
    is_set = name in given.values
    if name in given.idle:
        return Line(name, value, "not needed", given.idle[name], given=is_set)
    if name in given.problems:
        fate = "differs" if key.is_tolerated else "refused"
        return Line(name, value, fate, given.problems[name], given=is_set)
    if not key.ours:
        text = key.because if key.fate == "not needed" else f"as it is here ({key.because})"
        return Line(name, value, "not needed", text, given=is_set)
    ours = given.placed.get(name, key.ours)
    values = {our_key: get_key(config, our_key) for our_key in places(config, ours)}
    stands = {our_key: now for our_key, now in values.items() if now is not None}
    if not stands:
        if is_set and given[name] != key.default and given[name] not in OFF:
            return Line(name, value, "refused", f"nothing of this file becomes {ours}", is_set)
        return Line(name, value, "not needed", key.because or "as it is by default", is_set)
    if len({str(now) for now in stands.values()}) == 1:
        text = f"{ours}: {_value(next(iter(stands.values())))}"
    else:
        text = ", ".join(f"{our_key}: {_value(now)}" for our_key, now in stands.items())
    remark = given.notes.get(name, key.because)
    return Line(name, value, "becomes", text + (f" ({remark})" if remark else ""), is_set)


def _value(value: JsonValue) -> str:
    """Return a section by its names, a list by its parts, and a long text by its beginning."""
    if isinstance(value, list | dict):
        return ", ".join(_value(item.get("name", "")) if isinstance(item, dict) else _value(item)
                         for item in value)  # fmt: skip
    text = " ".join(str(value).split())
    return text if len(text) <= MOST_SHOWN else f"{text[: MOST_SHOWN - 3]}..."


def find_edits(config: Tree, prefix: str = "") -> list[str]:
    """Return the dotted keys that hold EDIT."""
    edits = []
    for name, value in config.items():
        if isinstance(value, dict):
            edits += find_edits(value, f"{prefix}{name}.")
        elif value == EDIT or (isinstance(value, list) and EDIT in value):
            edits.append(f"{prefix}{name}")
    return edits
