"""Reads the stages of a config: each is the config itself, with what its stage says laid over it.

`stages: [{name: warm, algorithm: sft}, {name: rl}]` are two configs, of which the first differs in
its algorithm. Among overrides `stage=warm` chooses one, and `stages.warm.trainer.steps=5` is for
that one alone; other overrides are for all.
"""

from __future__ import annotations

import difflib
from typing import Any

from omegaconf import DictConfig, OmegaConf
from pydantic import ValidationError

from rolecall.config import registry
from rolecall.config.errors import explain
from rolecall.config.merging import dotlist, merge, over
from rolecall.config.other_names import suggest_option
from rolecall.config.schema import Config, StageConfig
from rolecall.core.errors import ConfigError
from rolecall.core.json_types import JsonObject, JsonValue

OWN = tuple(field.alias or name for name, field in StageConfig.model_fields.items())
DATA = "data.jsonl"  # what a stage that collects writes into its folder
NOT_OF_ONE = ("stages", "output", "extends")  # keys that only the whole file has


def chosen(
    loaded: DictConfig, overrides: list[str], default: str | None = None
) -> tuple[DictConfig, list[str], int | None]:
    """Return the config, the overrides and the number (from 0) of the stage that overrides choose.

    Without an override it is the stage named `default`. The config of a file without stages is
    returned as it is, with None. Raises ConfigError with all that is wrong with the list of stages,
    or if no stage or none of that name is chosen.
    """
    names = [value for key, _, value in map(_parts, overrides) if key == "stage"]
    if not loaded.get("stages"):
        if names:
            raise ConfigError(f"stage={names[-1]}: the file has no stages")
        return loaded, overrides, None
    stages, rest = _separated(loaded.pop("stages"), overrides)
    listed = check_stages([own for own, _ in stages])
    choices = [stage.name for stage in listed]
    if names and names[-1] not in choices:
        raise ConfigError(f"stage={names[-1]}: no such stage; write one of: {', '.join(choices)}")
    name = names[-1] if names else default
    if name is None:
        raise ConfigError(
            "stages: `rolecall train` and `rolecall check` take all stages of a file; for one "
            f"alone write stage=NAME, with one of: {', '.join(choices)}"
        )
    number = choices.index(name)
    stage, differs = listed[number], stages[number][1]
    mine = f"stages.{stage.name}."
    plain = [one for one in rest if not one.startswith("stages.")]
    plain += [one.removeprefix(mine) for one in rest if one.startswith(mine)]
    config = over(_cleared(loaded, differs), differs)
    if stage.kind == "train" and stage.source is not None:
        _read_data(config, f"{stage.source}/{DATA}")
    return config, plain, number


def _read_data(config: DictConfig, file: str) -> None:
    """Set the file from which a stage learns: rows to train on, or the experts of its algorithm."""
    algorithm = config.get("algorithm")
    named = {"name": algorithm} if isinstance(algorithm, str) else dict(algorithm or {})
    if takes_experts(named.get("name")):
        config["algorithm"] = named | {"experts": file}
    else:
        OmegaConf.update(config, "rollout.data", file)


def takes_experts(algorithm: Any) -> bool:
    """Return whether an algorithm compares its agents with the rows of a file, its `experts`."""
    if not isinstance(algorithm, str):
        return False
    try:
        kind = registry.resolve("algorithm", algorithm, key="algorithm")
    except ConfigError:  # reported where the whole config is checked
        return False
    return "experts" in getattr(kind, "model_fields", {})


def list_stages(loaded: DictConfig, overrides: list[str]) -> list[StageConfig]:
    """Return the stages of a file; none where it has none. Raises ConfigError with all problems."""
    if not loaded.get("stages"):
        return []
    stages, _ = _separated(loaded["stages"], overrides)
    return check_stages([own for own, _ in stages])


def check_stages(given: list[JsonValue]) -> list[StageConfig]:
    """Return the stages' own sections; raises ConfigError with all that is wrong with them."""
    stages: list[StageConfig] = []
    problems: list[str] = []
    for number, own in enumerate(given):
        try:
            stages.append(StageConfig.model_validate(own))
        except ValidationError as error:
            problems += explain(error, StageConfig, own, prefix=f"stages.{number}").problems
    if not problems:
        problems = [line for n in range(len(stages)) for line in _wrong(stages, n)]
    if problems:
        raise ConfigError(*problems)
    return stages


def _wrong(stages: list[StageConfig], number: int) -> list[str]:
    """Return the problems of a stage, after those before it."""
    stage, before = stages[number], stages[:number]
    key = f"stages.{number}"
    problems = []
    if stage.name in [other.name for other in before]:
        problems.append(f"{key}.name: two stages are called {stage.name!r}; give each its own name")
    if stage.collect is not None and stage.evaluate:
        problems.append(f"{key}.evaluate: it collects already; make two stages of it")
    if stage.optimizer == "carried" and (
        stage.kind != "train" or all(other.kind != "train" for other in before)
    ):
        problems.append(
            f"{key}.optimizer: there are no moments to carry; remove it, or write fresh"
        )
    if stage.source is not None:
        problems += _wrong_source(stage, before, f"{key}.from")
    return problems


def _wrong_source(stage: StageConfig, before: list[StageConfig], key: str) -> list[str]:
    if stage.kind == "evaluate":
        return [f"{key}: an evaluation takes nothing from another stage; remove it"]
    kind = {"train": "collect", "collect": "train"}[stage.kind]
    candidates = [other.name for other in before if other.kind == kind]
    if stage.source in candidates:
        return []
    verb = {"collect": "collects", "train": "trains"}[kind]
    names = f"; write one of: {', '.join(candidates)}" if candidates else ""
    return [f"{key}: no stage {stage.source!r} before this one {verb}{names}"]


def _separated(
    given: Any, overrides: list[str]
) -> tuple[list[tuple[JsonObject, DictConfig]], list[str]]:
    """Return each stage's own keys and what differs in its config; and the remaining overrides.

    Overrides of a stage's own keys are in the first already.
    """
    plain = OmegaConf.to_container(given, resolve=False) if OmegaConf.is_config(given) else None
    if not isinstance(plain, list):
        raise ConfigError("stages: write a list, of which each stage has a name")
    separated: list[tuple[JsonObject, DictConfig]] = []
    names = [one.get("name") if isinstance(one, dict) else None for one in plain]
    _check_overrides(overrides, names)
    remaining = [one for one in overrides if _parts(one)[0] != "stage"]
    for number, stage in enumerate(plain):
        if not isinstance(stage, dict):
            raise ConfigError(f"stages.{number}: write a mapping with a name and what differs")
        if wrong := [key for key in NOT_OF_ONE if key in stage]:
            raise ConfigError(f"stages.{number}.{wrong[0]}: a stage has no {wrong[0]}; remove it")
        mine = [one for one in remaining if one.startswith(_owned(stage.get("name")))]
        remaining = [one for one in remaining if one not in mine]
        options = [one.removeprefix(f"stages.{stage.get('name')}.") for one in mine]
        whole = merge(OmegaConf.create(stage), dotlist(options))
        own = {key: whole.pop(key) for key in OWN if key in whole}
        _check_keys(whole, f"stages.{number}")
        own = OmegaConf.to_container(OmegaConf.create(own), resolve=True)  # type: ignore[assignment]
        separated.append((own, whole))
    return separated, remaining


def _check_keys(differs: DictConfig, place: str) -> None:
    allowed = [*OWN, *(key for key in Config.model_fields if key not in NOT_OF_ONE)]
    unknown = [key for key in map(str, differs) if key not in allowed]
    if unknown:
        near = difflib.get_close_matches(unknown[0], allowed, n=3, cutoff=0.7)
        hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(allowed)}"
        hint = suggest_option(unknown[0]) or hint
        raise ConfigError(f"{place}.{unknown[0]}: unknown key; {hint}")


def _owned(name: str | None) -> tuple[str, ...]:
    """Return the prefixes of overrides of a stage's own keys."""
    return tuple(f"stages.{name}.{key}{end}" for key in OWN for end in ("=", "."))


def _check_overrides(overrides: list[str], names: list[str | None]) -> None:
    for key in (_parts(override)[0] for override in overrides):
        name = key.split(".")[1] if key.startswith("stages.") else None
        if name is not None and name not in names:
            choices = ", ".join(map(str, names))
            raise ConfigError(f"{key}: there is no stage {name!r}; write one of: {choices}")


def _cleared(loaded: DictConfig, differs: DictConfig) -> DictConfig:
    """Without sections that a stage empties with `{}`."""
    for key, value in differs.items():
        if isinstance(value, DictConfig) and not value:
            loaded.pop(key, None)
    return loaded


def _parts(override: str) -> tuple[str, str, str]:
    return override.partition("=")
