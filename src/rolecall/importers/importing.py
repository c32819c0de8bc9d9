"""Imports another framework's files: writes our YAML and says what became of each key."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import yaml

from rolecall.config.load import NAMED
from rolecall.config.schema import Config
from rolecall.core.errors import ConfigError, nearest
from rolecall.core.json_types import JsonObject, JsonValue
from rolecall.importers.key_lines import locate_keys
from rolecall.importers.keys import Framework, Tree, set_key
from rolecall.importers.reading import guess, parse_value, read_text, read_values
from rolecall.importers.translating import (
    FRAMEWORKS,
    Translation,
    find_edits,
    translate,
)
from rolecall.runtime.consoles import PlainConsole
from rolecall.setup.plan import load_plan

# What stands for values that are still to be given while the rest is checked, by last part.
STAND_INS: JsonObject = {
    "steps": 1,
    "base": "model",
    "train": "rows",
    "test": "rows",
    "data": "rows",
    "url": "http://localhost:8000",
}
STYLES = {"becomes": "green", "not needed": "dim", "differs": "yellow", "refused": "red"}


class Plain(yaml.SafeDumper):
    """Writes equal lists out each time, without anchors, and long texts line by line."""

    def ignore_aliases(self, data: JsonValue) -> bool:
        return True


def _write_text(dumper: Plain, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


Plain.add_representer(str, _write_text)


def import_files(
    files: list[Path],
    overrides: list[str],
    *,
    source: str | None,
    partial: bool,
    arguments: Mapping[Path, Sequence[str]] = MappingProxyType({}),
) -> tuple[str, Translation]:
    """Return the text of our YAML; keys of a later file beat those of an earlier one.

    `arguments`: what run scripts are started with, `eval` of `run_math.sh eval`.
    Raises ConfigError for an unknown key, for what our own checks refuse, and, unless `partial`,
    where a key was refused; the table is printed before.
    """
    texts = [read_text(path) for path in files]
    framework = _framework(source, "\n".join(texts))
    values: JsonObject = {}
    for path, text in zip(files, texts, strict=True):
        try:
            words = arguments.get(path, ())
            read = read_values(text, framework, path=path, files=files, arguments=words)
            values = merge(values, read)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error
    theirs, ours = _split_overrides(overrides, framework)
    values = framework.tidy(values | theirs)
    named = [(path.name, text) for path, text in zip(files, texts, strict=True)]
    locations = locate_keys(named, overrides)
    try:
        translated = _translated(values, framework, ours)
    except ConfigError as error:
        raise ConfigError(*map(locations.locate, error.problems)) from error
    print_table(translated)
    if translated.refused_lines and not partial:
        names = ", ".join(
            f"{line.key} ({locations.lines[line.key]})" if line.key in locations.lines else line.key
            for line in translated.refused_lines
        )
        raise ConfigError(
            f"nothing is written: no counterpart here for {names}; --partial writes the rest"
        )
    check(translated.config)
    return render(translated, files), translated


def merge(first: JsonObject, then: JsonObject) -> JsonObject:
    """Merge two mappings key by key; `then` overrides `first`."""
    both = {name for name in first.keys() & then.keys() if isinstance(first[name], dict)}
    within = {n: merge(first[n], then[n]) for n in both if isinstance(then[n], dict)}
    return first | then | within


def _framework(source: str | None, text: str) -> Framework:
    if source is None:
        return guess(text, FRAMEWORKS)
    if source not in FRAMEWORKS:
        raise ConfigError(f"--from: no framework {source!r}; {nearest(source, list(FRAMEWORKS))}")
    return FRAMEWORKS[source]


def _split_overrides(
    overrides: list[str], framework: Framework
) -> tuple[JsonObject, dict[str, JsonValue]]:
    """Return the overrides of their keys, and those of ours.

    A key of both is theirs: `algorithm.gamma` becomes ours as the file's own does.
    """
    theirs: JsonObject = {}
    ours: dict[str, JsonValue] = {}
    for override in overrides:
        key, equals, text = override.lstrip("+").partition("=")
        if not equals:
            raise ConfigError(f"{override!r} is not an override: write key.sub=value")
        value = parse_value(text)
        [spelt] = framework.tidy({key: value}) or {key: value}
        if spelt != key or spelt in framework.keys:
            theirs[key] = value
        else:
            ours[key] = value
    return theirs, ours


def _translated(
    values: JsonObject, framework: Framework, settings: dict[str, JsonValue]
) -> Translation:
    steps = settings.get("trainer.steps")
    translated = translate(values, framework, steps=steps if isinstance(steps, int) else None)
    for key, value in settings.items():
        if key in NAMED:
            translated.config[key] = {"name": value}
        else:
            set_key(translated.config, key, value)
    open_keys = set(find_edits(translated.config))
    translated.edits = {key: what for key, what in translated.edits.items() if key in open_keys}
    return translated


def check(config: Tree) -> None:
    """Check a config as `rolecall train` does before it reads data or weights.

    Raises ConfigError.
    """
    if not config["team"]:
        raise ConfigError("nothing here says who is in the team: give the file that does, too")
    whole = copy.deepcopy(config)
    for key in find_edits(whole):
        last = key.rpartition(".")[2]
        if last not in STAND_INS:
            return  # without a workflow or an environment nothing can be said of the rest
        set_key(whole, key, STAND_INS[last])
    is_trained = any(agent.get("trainable", True) for agent in config["team"].values())
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "config.yaml"
        file.write_text(yaml.safe_dump(whole))
        stages = [f"stage={stage['name']}" for stage in config.get("stages", ())]
        for chosen in [[stage] for stage in stages] or [[]]:
            load_plan(file, chosen, is_trained=is_trained)


def render(found: Translation, files: list[Path]) -> str:
    """Return YAML in the order of our own keys, with comments on what to fill in and what is
    lost."""
    names = ", ".join(path.name for path in files)
    lines = [f"# From {names} of {found.framework.title}, by rolecall import."]
    lines += [f"# Fill in {key}: {' '.join(what.split())}" for key, what in found.edits.items()]
    lines += [
        f"# Not carried over: {line.key}={_short(line.value)}: {line.said}"
        for line in found.refused_lines
    ]
    lines += [
        f"# Differs from there: {line.key}={_short(line.value)}: {line.said}"
        for line in found.select_lines("differs")
    ]
    lines += [f"# Differs from there: {what}" for what in found.framework.differs]
    order = {name: number for number, name in enumerate(Config.model_fields)}
    config = dict(sorted(found.config.items(), key=lambda item: order.get(item[0], len(order))))
    text = yaml.dump(
        config,
        Dumper=Plain,
        sort_keys=False,
        default_flow_style=None,
        width=98,
        allow_unicode=True,
    )
    return "\n".join(lines) + "\n" + text


def print_table(found: Translation) -> None:
    """Print a line for each key to stderr: the YAML may go to the output."""
    console = PlainConsole(stderr=True)
    for line in found.lines:
        result = line.said if line.fate == "becomes" else f"{line.fate}: {line.said}"
        value = _short(line.value) + ("" if line.given else " (default)")
        text = f"{line.key}={value} -> {result}"
        console.print(text, style=STYLES[line.fate], markup=False, highlight=False, soft_wrap=True)
    for what in found.framework.differs:
        console.print(f"differs: {what}", markup=False, highlight=False, soft_wrap=True)
    for key, what in found.edits.items():
        console.print(f"fill in {key}: {what}", markup=False, highlight=False, soft_wrap=True)


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 48 else f"{line[:45]}..."
