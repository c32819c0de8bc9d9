"""Expands `trainer.warm_start` into a stage of SFT before the stage that trains as before."""

from __future__ import annotations

from typing import Any

from omegaconf import DictConfig, OmegaConf
from pydantic import ValidationError

from rolecall.config.errors import explain
from rolecall.config.merging import dotlist, merge
from rolecall.config.schema import WRITTEN, WarmStartConfig
from rolecall.core.errors import ConfigError
from rolecall.core.json_types import JsonObject

KEY = "trainer.warm_start"
WARM, TRAIN = "warm_start", "train"  # names of the stages
LR, LR_OF_ADAPTERS = 2e-5, 2e-4
# Keys of an override that are meant for the stage that trains alone.
OF_TRAINING = (
    "algorithm", "critics", "evaluation.every", "metrics", "rewards", "rollout",
    "trainer.deterministic", "trainer.epochs", "trainer.idle_steps", "trainer.keep",
    "trainer.max_staleness", "trainer.save_every", "trainer.steps",
)  # fmt: skip


def expand_warm_start(loaded: DictConfig, overrides: list[str]) -> tuple[DictConfig, list[str]]:
    """Return a file and overrides in which two stages stand for `trainer.warm_start`.

    Without it both are returned as they are. Overrides of what the first stage sets itself become
    overrides of the second. Raises ConfigError where the file has stages already.
    """
    mine = [one for one in overrides if _key(one) == KEY or one.startswith(f"{KEY}.")]
    section = merge(_part(loaded), dotlist(mine)).get("trainer")
    value = section.get("warm_start") if isinstance(section, DictConfig) else None
    if not value:
        return loaded, overrides
    options = _read(value)
    if not options.steps:
        return loaded, overrides
    if loaded.get("stages"):
        raise ConfigError(
            f"{KEY}: the file has stages; add one with algorithm: sft and rollout.data: {WRITTEN}"
        )
    loaded = loaded.copy()
    if isinstance(loaded.get("trainer"), DictConfig):
        loaded.trainer.pop("warm_start", None)
    of_policies = [one for one in overrides if one.startswith("policies.")]
    merged = merge(loaded.copy(), dotlist(of_policies))  # an override may add an adapter
    loaded["stages"] = [_stage(merged, options), {"name": TRAIN}]
    rest = [one for one in overrides if one not in mine]
    return loaded, [f"stages.{TRAIN}.{one}" if _is_of_training(one) else one for one in rest]


def _read(value: Any) -> WarmStartConfig:
    if OmegaConf.is_config(value):
        value = OmegaConf.to_container(value, resolve=True)
    options: JsonObject = value if isinstance(value, dict) else {"steps": value}
    try:
        return WarmStartConfig.model_validate(options)
    except ValidationError as error:
        problems = explain(error, WarmStartConfig, options, prefix=KEY).problems
        raise ConfigError(*problems) from error


def _stage(config: DictConfig, options: WarmStartConfig) -> dict[str, Any]:
    """Return the stage of SFT: what differs in it from the config."""
    team, policies = config.get("team"), config.get("policies")
    agents = list(team) if isinstance(team, DictConfig) else []
    named = policies.items() if isinstance(policies, DictConfig) else ()
    return {
        "name": WARM,
        "algorithm": {"name": "sft"},
        "critics": {},
        "team": {name: {"algorithm": None} for name in agents},
        "policies": {
            name: {"optimizer": {"lr": options.lr or (LR_OF_ADAPTERS if adapted else LR)}}
            for name, policy in named
            for adapted in [isinstance(policy, DictConfig) and policy.get("adapter") is not None]
        },
        "rollout": {
            "groups": options.rows, "group_size": 1, "data": WRITTEN, "curriculum": None,
            "stratify": False, "deadline_s": None, "carry": 0,
        },
        "trainer": {
            "steps": options.steps, "epochs": None, "save_every": options.steps,
            "max_staleness": 0, "deterministic": None,
        },
        "evaluation": {"every": 0},
    }  # fmt: skip


def _part(loaded: DictConfig) -> DictConfig:
    """Return the section `trainer` alone, as a config of its own."""
    trainer = loaded.get("trainer")
    if not isinstance(trainer, DictConfig) or trainer.get("warm_start") is None:
        return OmegaConf.create({})
    return OmegaConf.create({"trainer": {"warm_start": trainer.warm_start}})


def _key(override: str) -> str:
    return override.partition("=")[0]


def _is_of_training(override: str) -> bool:
    key = _key(override)
    return (
        any(key == own or key.startswith(f"{own}.") for own in OF_TRAINING)
        or (key.startswith("policies.") and ".optimizer" in key)
        or (key.startswith("team.") and ".algorithm" in key)
    )
