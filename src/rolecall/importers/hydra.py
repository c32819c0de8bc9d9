"""Follows what a file for Hydra names: `--config-name` of a script, `defaults` of a YAML."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from rolecall.core.errors import ConfigError
from rolecall.core.json_types import JsonObject, JsonValue
from rolecall.importers.keys import Key, is_unknown, show_value
from rolecall.importers.reading import read_text, read_yaml

SELF = "_self_"
MOST_FOLLOWED = 20  # files that name one another
Follow = Callable[[JsonObject, Path, Sequence[Path]], JsonObject]


def follower(keys: dict[str, Key], *, folder: str, base: str) -> Follow:
    """Return what follows the files of a framework.

    `folder` is where its repository keeps configs, somewhere above a script. The file `base` holds
    the defaults of the table: where it lies beside a YAML, only what differs from these is kept.
    """

    def follow(values: JsonObject, path: Path, files: Sequence[Path], depth: int = 0) -> JsonObject:
        """Return the values of a file over those of the files that it names, unless these are among
        `files`. Raises ConfigError for a file that is not there.
        """
        if depth > MOST_FOLLOWED:
            raise ConfigError(f"defaults: more than {MOST_FOLLOWED} files name one another")
        values = dict(values)
        name, within = values.pop("config-name", None), values.pop("config-path", None)
        listed = values.pop("defaults", None)
        followed: JsonObject = {}
        if name is not None and not _is_among(name, files):
            file = _find_config(name, path, folders=[str(within or ""), folder])
            followed = follow(read_yaml(read_text(file), keys), file, files, depth + 1)
        entries = listed if isinstance(listed, list) else [listed] if listed else []
        for entry in entries if SELF in entries else [*entries, SELF]:
            if entry == SELF:
                followed = followed | values
            elif not _is_among(entry, files):
                followed = followed | named_by(entry, path, files, depth)
        return followed

    def named_by(entry: JsonValue, path: Path, files: Sequence[Path], depth: int) -> JsonObject:
        """Return the values of a file that stands in `defaults`."""
        file = path.parent / f"{entry}.yaml"
        if not file.is_file():
            if entry == base:
                return {}  # the table of keys says the same
            raise ConfigError(f"defaults: there is no {file}; give that file before this one")
        values = follow(read_yaml(read_text(file), keys), file, files, depth + 1)
        return _without_defaults(values, keys) if entry == base else values

    return follow


def _is_among(name: JsonValue, files: Sequence[Path]) -> bool:
    return any(file.stem == Path(str(name)).stem and file.suffix != ".sh" for file in files)


def _find_config(name: JsonValue, path: Path, *, folders: list[str]) -> Path:
    """Return the YAML of a name beside a script, or in one of these folders above it."""
    if is_unknown(name):
        raise ConfigError(
            f"config-name: the script computes it ({show_value(name)}); give that YAML before it"
        )
    file = str(name).removesuffix(".yaml") + ".yaml"
    above = [path.resolve().parent, *path.resolve().parent.parents]
    searched = [above[0], *(base / folder for base in above for folder in folders if folder)]
    for within in searched:
        if (within / file).is_file():
            return within / file
    raise ConfigError(
        f"config-name: there is no {folders[-1]}/{file} above {path}; give that YAML before it"
    )


def _without_defaults(values: JsonObject, keys: dict[str, Key]) -> JsonObject:
    """Leave out what says the same as the table of keys, or what changes nothing."""
    kept: JsonObject = {}
    for name, value in values.items():
        key = keys.get(name.removeprefix("default_agent."))
        if key is None or not (
            key.fate == "not needed" or value == key.default or value in (key.harmless or ())
        ):
            kept[name] = value
    return kept
