"""Reads a config: a recipe or a YAML file, with dotted overrides of the command line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from importlib.resources import files
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import ValidationError
from yaml import YAMLError

from rolecall.config import stages
from rolecall.config.errors import explain, wrong_entries
from rolecall.config.key_locations import KeyLocations, read_key_locations
from rolecall.config.merging import NAMED, dotlist, merge, over
from rolecall.config.references import BROKEN, describe, problems_in, references_in
from rolecall.config.schema import Config, StageConfig
from rolecall.config.warm_start import TRAIN, expand_warm_start
from rolecall.core.errors import ConfigError, first_line, nearest

READING = (YAMLError, OmegaConfBaseException, TypeError, UnicodeDecodeError, RecursionError)
MOST_FILES = 8  # that extend one another
RECIPES = Path(str(files("rolecall.recipes")))


class UnreadableError(ConfigError):
    """Entries of a config have wrong names or types.

    `keys`: the dotted keys of these entries; `rest`: the config without them, if there is one.
    """

    def __init__(self, *problems: str, keys: list[str], rest: Config | None) -> None:
        super().__init__(*problems)
        self.keys, self.rest = keys, rest


def recipe_names() -> list[str]:
    return sorted(path.stem for path in RECIPES.glob("*.yaml"))


def find(source: str) -> Path:
    """Return the path of a recipe or a YAML file. Raises ConfigError with the nearest names."""
    recipe = RECIPES / f"{source}.yaml"
    if recipe.is_file():
        return recipe
    if Path(source).is_file():
        return Path(source)
    if source.endswith((".yaml", ".yml")) or "/" in source:
        raise ConfigError(f"there is no file {source}")
    raise ConfigError(
        f"there is no recipe {source!r}, and no file or run folder of that name; "
        f"{nearest(source, recipe_names())}"
    )


def load(path: Path, overrides: list[str] | None = None) -> Config:
    """Read a config, override its dotted keys (`trainer.steps=5`) and check it. Raises ConfigError.

    A mapping is merged into the one of the file; an empty one clears it (`rewards={}`), so
    `rewards={} rewards.coach=1` replaces it, or adds it (`critics.agent={}`). Of a file
    with stages `stage=NAME` takes one; after a warm start it is `train` by default.
    """
    _check_form(overrides or [])
    files: dict[str, Path] = {}
    try:
        loaded = read_files(path, files)
        with _located(files, overrides or []):
            whole, expanded = expand_warm_start(loaded, overrides or [])
            default = None if whole is loaded else TRAIN
            loaded, own_overrides, stage = stages.chosen(whole, expanded, default)
        merged = merge(loaded, dotlist(_by_name(loaded, own_overrides)))
        with _located(files, overrides or []):
            if problems := problems_in(merged):
                raise ConfigError(*problems)
        if missing := sorted(OmegaConf.missing_keys(merged)):
            raise ConfigError(
                f"{', '.join(missing)}: the file leaves it open (???); write a value there, "
                "or KEY=VALUE on the command line"
            )
        plain: Any = OmegaConf.to_container(merged, resolve=True)
    except BROKEN as error:
        raise _broken(error, files, overrides or []) from error
    except READING as error:
        raise _unreadable(error, path) from error
    locations = read_key_locations(files, own_overrides)
    if stage is not None:
        locations = locations.for_stage(stage)
    try:
        config = Config.model_validate(plain)
    except ValidationError as error:
        wrong = explain(error, Config, plain)
        raise UnreadableError(
            *map(locations.locate, wrong.problems),
            keys=[".".join(entry) for entry in wrong_entries(error, plain)],
            rest=_without_wrong(error, plain, locations),
        ) from error
    config._locations = locations
    unresolved = OmegaConf.to_container(merged, resolve=False)
    config._references = references_in(unresolved, config)
    return config


def load_stages(path: Path, overrides: list[str] | None = None) -> list[StageConfig]:
    """Return a file's stages as it declares them; none where it has none. Raises ConfigError."""
    _check_form(overrides or [])
    files: dict[str, Path] = {}
    try:
        loaded = read_files(path, files)
        with _located(files, overrides or []):
            return stages.list_stages(*expand_warm_start(loaded, overrides or []))
    except BROKEN as error:
        raise _broken(error, files, overrides or []) from error
    except READING as error:
        raise _unreadable(error, path) from error


def _check_form(overrides: list[str]) -> None:
    for override in overrides:
        if "=" not in override:
            raise ConfigError(f"{override!r} is not an override: write key.sub=value")
        try:
            dotlist([override])
        except (YAMLError, OmegaConfBaseException) as error:
            key, _, value = override.partition("=")
            raise ConfigError(
                f"command line: {key}: {value!r} is not valid YAML ({first_line(error)}); "
                "write a number, a text, [a, list] or {a: mapping}"
            ) from error


@contextmanager
def _located(files: dict[str, Path], overrides: list[str]) -> Iterator[None]:
    """Name the file and the line of each problem that is raised inside."""
    try:
        yield
    except ConfigError as error:
        locations = read_key_locations(files, overrides)
        raise ConfigError(*map(locations.locate, error.problems)) from error


def _broken(
    error: OmegaConfBaseException, files: dict[str, Path], overrides: list[str]
) -> ConfigError:
    """Return the problem of a text with a broken reference, with its file and line."""
    return ConfigError(read_key_locations(files, overrides).locate(describe(error)))


def _unreadable(error: Exception, path: Path) -> ConfigError:
    """Return the error for a file that cannot be read."""
    # PyYAML 6.0.4 counts the levels itself; the versions before it run out of Python's stack.
    if isinstance(error, RecursionError) or "maximum nesting depth" in str(error):
        return ConfigError(f"{path} is nested too deeply to be read; write fewer levels")
    if isinstance(error, YAMLError):
        mark = getattr(error, "problem_mark", None)
        line = f":{mark.line + 1}" if mark else ""
        return ConfigError(
            f"{path}{line}: the YAML cannot be read: {getattr(error, 'problem', error)}"
        )
    if isinstance(error, UnicodeDecodeError):
        return ConfigError(f"{path} is not a text file; name a YAML file")
    return ConfigError(f"{path}: {first_line(error)}")


def read_files(path: Path, files: dict[str, Path], *, depth: int = 1) -> DictConfig:
    """Read a file over the one that it extends; notes all files in `files` in reading order."""
    name = path.name if path.parent == RECIPES else str(path)
    try:
        loaded = OmegaConf.load(path)
    except BROKEN as error:
        raise _broken(error, {name: path}, []) from error
    if not isinstance(loaded, DictConfig):
        raise ConfigError(f"{path} is not a mapping of keys to values; write lines of `key: value`")
    base = loaded.pop("extends", None)
    if base is None:
        files[name] = path
        return loaded
    beside = path.parent / str(base)
    first = beside if beside.is_file() else find(str(base))
    if depth == MOST_FILES or first == path:
        raise ConfigError(f"extends: {name} extends itself, or {MOST_FILES} files one another")
    below = read_files(first, files, depth=depth + 1)
    files[name] = path
    return over(below, loaded)


def _without_wrong(error: ValidationError, plain: Any, locations: KeyLocations) -> Config | None:
    """Return the config without its wrong entries; None where something is missing then."""
    rest = deepcopy(plain)
    for path in sorted(wrong_entries(error, plain), reverse=True):
        here = rest
        for key in path[:-1]:
            here = here[int(key)] if isinstance(here, list) else here.get(key, {})
        if isinstance(here, dict):
            here.pop(path[-1], None)
    try:
        config = Config.model_validate(rest)
    except ValidationError:
        return None
    config._locations = locations
    return config


def _by_name(loaded: DictConfig, overrides: list[str]) -> list[str]:
    """Expand names: `algorithm: drmas` and `algorithm.agg=token` add up, and `algorithm=grpo`
    starts anew.
    """
    for key in (key for key, _, value in map(_parts, overrides) if _empty(value)):
        OmegaConf.update(loaded, key, {}, merge=False)
    named = [(loaded, key, key) for key in NAMED]
    environment = loaded.get("environment")
    parts = environment.get("of") if isinstance(environment, DictConfig) else None
    if isinstance(parts, DictConfig):  # of a mixed environment
        named += [(parts, name, f"environment.of.{name}") for name in map(str, parts)]
    policies = loaded.get("policies")
    for name in map(str, policies) if isinstance(policies, DictConfig) else ():
        if isinstance(policy := policies[name], DictConfig):
            named += [(policy, key, f"policies.{name}.{key}") for key in ("engine", "learner")]
    for where, key, dotted in named:
        if isinstance(where.get(key), str):
            where[key] = {"name": where[key]}
        if any(key == dotted and _names(value) for key, _, value in map(_parts, overrides)):
            where.pop(key, None)
    locations = {dotted for _, _, dotted in named}
    return [
        f"{key}.name={value}"
        if key in locations and not value.lstrip().startswith(("{", "["))
        else override
        for override in overrides
        for key, _, value in [_parts(override)]
        if not _empty(value)
    ]


def _parts(override: str) -> tuple[str, str, str]:
    return override.partition("=")


def _names(value: str) -> bool:
    """Return whether an override names another thing, which starts anew without the file's
    options.
    """
    return not value.lstrip().startswith("{") or "name:" in value or '"name"' in value


def _empty(value: str) -> bool:
    return "".join(value.split()) == "{}"
