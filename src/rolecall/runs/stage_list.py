"""Reads the stages of a config with the plan of each, and checks that each fits those before it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml

from rolecall.config.load import find, load_stages
from rolecall.config.references import written_keys
from rolecall.config.schema import Config, StageConfig
from rolecall.core.errors import ConfigError
from rolecall.runs.run_paths import is_run
from rolecall.setup.plan import Plan, load_plan
from rolecall.setup.stage_handover import Carried
from rolecall.setup.validate_options import unknown_agents
from rolecall.storage.run_folder import STAGES


@dataclass(frozen=True, slots=True)
class PlannedStage:
    """A stage and its plan, whose config is as the file declares it."""

    stage: StageConfig
    plan: Plan

    @property
    def name(self) -> str:
        return self.stage.name

    @property
    def config(self) -> Config:
        return self.plan.config


def is_staged(path: Path, overrides: list[str]) -> bool:
    """Return whether a path is a run folder with stages, or a file with stages of which none is
    chosen.

    Raises ConfigError for the folder of one stage, which goes on with the others only.
    """
    if path.is_dir():
        if (path.resolve().parent / STAGES).is_file() and (path / "config.yaml").is_file():
            raise ConfigError(
                f"{path} is a stage of a run; continue the whole: rolecall train {path.parent}"
            )
        return (path / STAGES).is_file()
    if is_run(path) or any(override.startswith("stage=") for override in overrides):
        return False
    return bool(load_stages(find(str(path)), overrides))


def read(file: Path, overrides: list[str]) -> list[PlannedStage]:
    """Return all stages of a file. Raises ConfigError with all that does not fit in any of them."""
    stages = load_stages(file, overrides)
    parts: list[PlannedStage] = []
    problems: dict[str, list[str]] = {}  # each with the stages that have it
    carried = Carried()
    for stage in stages:
        try:
            plan = load_plan(file, [*overrides, f"stage={stage.name}"])
            plan.config.output = None  # the whole run has one
            parts.append(PlannedStage(stage, plan))
            _check(parts, carried)
        except ConfigError as error:
            for line in error.problems:
                problems.setdefault(line, []).append(stage.name)
    if problems:
        raise ConfigError(
            *(
                line if len(names) == len(stages) > 1 else f"{line} (stage {', '.join(names)})"
                for line, names in problems.items()
            )
        )
    return parts


def _check(parts: list[PlannedStage], carried: Carried) -> None:
    """Check that the last of some stages fits those before it."""
    *before, last = parts
    config, stage = last.config, last.stage
    problems = list(carried.problems(config, stage))
    if stage.collect is not None:
        problems += unknown_agents(config, stage.collect.agents, key="collect.agents")
    if stage.evaluate and config.evaluation.tasks == 0:
        problems.append("evaluation.tasks: 0 leaves nothing to evaluate; write at least 1")
    if stage.kind == "train":
        carried.add(config, stage.name, Path(stage.name))
        source = next((one.stage.collect for one in before if one.name == stage.source), None)
        takes = {
            algorithm.takes_data if algorithm.demonstrations is None else "demonstrations"
            for algorithm in last.plan.algorithms.values()
        }
        if source is not None and None not in takes and takes != {source.kind}:
            problems.append(
                f"from: stage {stage.source!r} collects {source.kind}, and {config.algorithm.name} "
                f"takes {', '.join(sorted(map(str, takes)))}; collect pairs for dpo alone"
            )
    if problems:
        raise config.locate_problems(problems)


def write_stages(parts: list[PlannedStage]) -> str:
    """Return a file with these stages, each with all its keys, so that it stands for itself."""
    stages = []
    for planned in parts:
        config = written_keys(planned.config)
        del config["output"]
        stages.append(planned.stage.model_dump(mode="json", exclude_none=True) | config)
    return yaml.safe_dump({"stages": stages}, sort_keys=False)
