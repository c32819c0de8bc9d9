"""Reads the keys of another framework from a run script, `key=value` lines or YAML."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from rolecall.core.errors import ConfigError, first_line
from rolecall.core.json_types import JsonObject, JsonValue, Options
from rolecall.importers.keys import UNKNOWN, Framework, Key
from rolecall.importers.shell import split, training_words

MOST_VALUES = 100_000  # of a file, with what its references stand for
MOST_WORDS = 10_000  # of a training command
MOST_BYTES = 1 << 20  # of a file; scripts and YAML of people have some thousands
PROGRAMS = (
    "verl.trainer.",
    "openrlhf.cli.",
    "marti.cli.",
    ".multi_agent_train_ppo_ray",
    "mrlm.cli",
)
FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)  # code in Markdown
REFERENCE = re.compile(r"\$\{([\w.]+)\}")
MOST_REFERENCES = 20  # that a value names, and those name
MOST_CHARACTERS = 10_000  # of a value with what its references stand for
LINE = re.compile(r"[+~]*([\w.]+)=(.*)", re.DOTALL)


def read_text(path: Path) -> str:
    """Read a text file; raises ConfigError if it does not exist, is large, or holds no text."""
    try:
        with path.open("rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"there is no file {path}") from error
    if len(data) > MOST_BYTES:
        raise ConfigError(f"{path}: more than {MOST_BYTES >> 20} MiB, so it is no config")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not a text file") from error


# What configs of libraries for single models hold, of which teams are made elsewhere.
LIBRARIES = {
    "OpenRLHF": ("openrlhf.cli", "n_samples_per_prompt"),
}


def guess(text: str, frameworks: dict[str, Framework]) -> Framework:
    """Return the framework whose marks a text holds most of; raises ConfigError if none leads."""
    own = {name: f for name, f in frameworks.items() if any(m in text for m in f.own_marks)}
    if not own:
        for library, marks in LIBRARIES.items():
            if any(mark in text for mark in marks):
                names = ", ".join(f.title for f in frameworks.values())
                raise ConfigError(
                    f"this is a plain config of {library}, without a team; import reads those of "
                    f"{names}. docs/coming-from.md has its options beside ours, and a wrong key in "
                    f"a config of ours is answered with ours"
                )
    counts = {name: sum(m in text for m in f.marks) for name, f in (own or frameworks).items()}
    best = max(counts, key=lambda name: counts[name])
    if list(counts.values()).count(counts[best]) > 1:
        raise ConfigError(f"whose config this is cannot be told: give --from {'|'.join(counts)}")
    return frameworks[best]


def read_values(
    text: str,
    framework: Framework,
    *,
    path: Path | None = None,
    files: Sequence[Path] = (),
    arguments: Sequence[str] = (),
) -> JsonObject:
    """Return values by key, with the framework's own spellings of keys made that of its table.

    Of Markdown the first block with a training command or a config counts. The text is that of
    `path`, beside which files that it names are looked for, unless they are among `files`, which
    are imported together. `arguments` are words that a script is started with. Raises ConfigError
    for a text that is neither YAML nor holds a training command or settings.
    """
    if path is not None and path.suffix == ".md":
        text = _find_block(text, framework)
    try:
        words = training_words(text, PROGRAMS, arguments)
        if words is not None:
            values = _of_words(words)
        elif _is_lines(text):
            values = _of_words([word for command in split(text) for word in command])
        else:
            values = read_yaml(text, framework.keys)
        if framework.follow is not None and path is not None:
            values = framework.follow(values, path, files)
        return framework.tidy(values)
    except RecursionError as error:
        raise ConfigError("it is nested too deeply to be read; write fewer levels") from error


def _find_block(page: str, framework: Framework) -> str:
    """Return the first block of a Markdown page with a training command, else with a config."""
    blocks = FENCED.findall(page)
    commands = [text for kind, text in blocks if any(program in text for program in PROGRAMS)]
    configs = [
        text
        for kind, text in blocks
        if kind in ("yaml", "yml") and any(mark in text for mark in framework.marks)
    ]
    return next(iter([*commands, *configs]), page)


def read_yaml(text: str, keys: dict[str, Key]) -> JsonObject:
    """Return the values of a YAML text by dotted key; raises ConfigError if it holds no mapping."""
    return _follow_references(flat(_of_yaml(text), keys))


def _follow_references(values: JsonObject) -> JsonObject:
    """Replace `${a.b}` by the value of that key: {"a.b": 1, "c": "${a.b}"} -> c is 1.

    References to what is not there, such as variables of the environment, stay as they are.
    """
    followed = dict(values)
    for name, value in values.items():
        for _ in range(MOST_REFERENCES):
            match = REFERENCE.search(value) if isinstance(value, str) else None
            if match is None or match[1] not in values or match[1] == name:
                break
            other = values[match[1]]
            whole = match[0] == value
            value = other if whole else value.replace(match[0], str(other), 1)
            if isinstance(value, str) and len(value) > MOST_CHARACTERS:
                raise ConfigError(f"{name}: more than {MOST_CHARACTERS:,} characters")
        followed[name] = value
    return followed


def flat(tree: JsonObject, keys: dict[str, Key], *, prefix: str = "") -> JsonObject:
    """Flatten a tree: {"a": {"b": 1}} -> {"a.b": 1}.

    A mapping that is a key of the table stays whole, unless there are keys below it.
    """
    flat_values: JsonObject = {}
    for name, value in tree.items():
        key = f"{prefix}{name}"
        deeper = key not in keys or any(other.startswith(f"{key}.") for other in keys)
        if isinstance(value, dict) and value and deeper:
            flat_values |= flat(value, keys, prefix=f"{key}.")
        else:
            flat_values[key] = value
    return flat_values


def _is_lines(text: str) -> bool:
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    return bool(lines) and all(LINE.match(line) or line.startswith("--") for line in lines)


def _of_yaml(text: str) -> JsonObject:
    try:
        loaded = _loaded(text)
    except (YAMLError, OmegaConfBaseException) as error:
        if any(program in text for program in PROGRAMS):
            raise ConfigError(
                "its training command stands in a loop, or in an `if` that only a shell decides; "
                "give a file with the command alone"
            ) from error
        mark = getattr(error, "problem_mark", None)
        line = f"line {mark.line + 1}: " if mark is not None else ""
        raise ConfigError(
            f"{line}neither YAML nor a script with a training command: {first_line(error)}"
        ) from error
    if not isinstance(loaded, dict):
        raise ConfigError("neither YAML, nor a script with a training command, nor key=value lines")
    return {str(key): value for key, value in loaded.items()}


def _of_words(words: list[str]) -> JsonObject:
    """Read options: `a.b=1`, `+a.b=1`, `--a 1`, `--a=1`, `--a 1 2`, and `--a` for true."""
    if len(words) > MOST_WORDS:
        raise ConfigError(f"its command has more than {MOST_WORDS:,} words")
    options: Options = {}
    option: str | None = None
    listed: list[JsonValue] = []

    def close() -> None:
        if option is not None:
            options[option] = (
                True if not listed else listed[0] if len(listed) == 1 else list(listed)
            )

    for word in words:
        if word.startswith("--"):
            close()
            option, equals, value = word[2:].partition("=")
            listed = [parse_value(value)] if equals else []
            continue
        setting = LINE.fullmatch(word)
        if setting:
            close()
            option = None
            options[setting[1]] = parse_value(setting[2])
        elif option is not None:
            listed.append(parse_value(word))
        else:
            raise ConfigError(f"{word!r} is neither key=value nor an option")
    close()
    return options


def _loaded(text: str) -> Any:
    """Load a text of YAML; anchors and references to them may not make it large.

    Raises ConfigError, and what YAML and OmegaConf raise.
    """
    if "&" in text and "*" in text:
        counts: dict[int, int] = {}
        if _count(yaml.safe_load(text), counts) > MOST_VALUES:
            raise ConfigError(f"its references (*) make it more than {MOST_VALUES:,} values")
    return OmegaConf.to_container(OmegaConf.create(text), resolve=False)


def _count(value: JsonValue, counts: dict[int, int]) -> int:
    """Return how many values there are where each reference stands for a copy; each is looked at
    once.
    """
    if not isinstance(value, dict | list):
        return 1
    if id(value) not in counts:
        counts[id(value)] = MOST_VALUES + 1  # inside of itself
        inner = value.values() if isinstance(value, dict) else value
        counts[id(value)] = 1 + sum(_count(each, counts) for each in inner)
    return counts[id(value)]


def parse_value(text: str) -> Any:
    """Parse a value as YAML, with 1e-6 as a float; what is no YAML is text."""
    if UNKNOWN in text and not text.lstrip().startswith("{"):
        return text
    if text.lstrip().startswith("{"):
        try:  # `\\$question` in a script leaves a backslash before what is not known
            return json.loads(text.replace(f"\\{UNKNOWN}", UNKNOWN), strict=False)
        except ValueError as error:
            raise ConfigError(f"not JSON: {text[:60]!r}: {error}") from error
    try:
        return _loaded(f"value: {text}")["value"]
    except (YAMLError, OmegaConfBaseException, KeyError, TypeError):
        return text
