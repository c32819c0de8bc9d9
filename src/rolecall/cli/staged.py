"""Runs the stages of a config one after the other, each in its own folder of the run's folder."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from rolecall.cli.collect import played_now, stored, unknown_agents
from rolecall.cli.collect import write as write_rows
from rolecall.cli.one_run import Stop, is_finished, make_room, summarised, to_the_end
from rolecall.cli.run_paths import is_run
from rolecall.cli.services import running
from rolecall.config.errors import ConfigError
from rolecall.config.load import find, load_stages
from rolecall.config.schema import Config, StageConfig
from rolecall.config.stages import DATA
from rolecall.monitor import stages_page, summary, terminal
from rolecall.monitor.comparison import TEST
from rolecall.runtime.call_tree import task_factory
from rolecall.setup.build import build
from rolecall.setup.carried import Carried
from rolecall.setup.plan import Plan, load_plan, validate
from rolecall.storage import checkpoint, run_folder
from rolecall.storage.episode_io import write_parquet
from rolecall.storage.evaluation_journal import evaluation_journal
from rolecall.storage.run_folder import STAGES, RunFolder
from rolecall.training import train_step
from rolecall.training.evaluating import evaluate_run
from rolecall.training.run import Run

console = Console()
Found = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Part:
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
    """Whether it is the folder of a run with stages, or a file with stages of which none is chosen.

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


def read(file: Path, overrides: list[str]) -> list[Part]:
    """All stages of a file. Raises ConfigError with all that does not fit in any of them."""
    stages = load_stages(file, overrides)
    parts: list[Part] = []
    problems: dict[str, list[str]] = {}  # each with the stages that have it
    carried = Carried()
    for stage in stages:
        try:
            plan = load_plan(file, [*overrides, f"stage={stage.name}"])
            plan.config.output = None  # the whole run has one
            parts.append(Part(stage, plan))
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


def _check(parts: list[Part], carried: Carried) -> None:
    """Whether the last of some stages fits those before it."""
    *before, part = parts
    config, stage = part.config, part.stage
    problems = list(carried.problems(config, stage))
    if stage.collect is not None:
        problems += unknown_agents(config, stage.collect.agents, key="collect.agents")
    if stage.evaluate and config.evaluation.tasks == 0:
        problems.append("evaluation.tasks: 0 leaves nothing to evaluate; write at least 1")
    if stage.kind == "train":
        carried.add(config, stage.name, Path(stage.name))
        source = next((one.stage.collect for one in before if one.name == stage.source), None)
        takes = {algorithm.takes_data for algorithm in part.plan.algorithms.values()}
        if source is not None and None not in takes and takes != {source.kind}:
            problems.append(
                f"from: stage {stage.source!r} collects {source.kind}, and {config.algorithm.name} "
                f"takes {', '.join(sorted(map(str, takes)))}; collect pairs for dpo alone"
            )
    if problems:
        raise config.located(problems)


def train(
    source: Path,
    overrides: list[str],
    *,
    output: Path | None,
    resume: bool,
    allow_changes: bool,
    stop: Stop,
) -> Found:
    """Run all stages that are not finished; returns {"stages": [...]}, a summary of each.

    Raises as training does. A run that is started again goes on in the stage and step where it
    stopped.
    """
    declared = source / STAGES if source.is_dir() else source
    parts = read(declared, overrides)
    chosen = source if source.is_dir() else output or _given_output(source, overrides)
    folder = RunFolder(chosen) if chosen else _unnamed(source.stem, parts, resume=resume)
    if resume and not (folder.path / STAGES).is_file():
        raise ConfigError(f"there is no run with stages in {folder.path}")
    with folder.locked():
        _check_begun(folder.path, parts, allow_changes=allow_changes)
        run_folder.write_aside(folder.path / STAGES, _declared(parts))
        carried, found = Carried(), []
        for number, part in enumerate(parts):
            console.print(_told(part, number, len(parts)), soft_wrap=True, highlight=False)
            later = [other.name for other in parts[number + 1 :]]
            one = _Stage(part, folder.path, carried, later, allow_changes=allow_changes, stop=stop)
            found.append({"name": part.name, "kind": part.stage.kind, **one.done()})
            _write(folder, found)
            make_room()
    console.print(f"Wrote {folder.path}: report.html, summary.json, a folder for each stage")
    return {"stages": found}


class _Stage:
    """One stage of a run that has begun."""

    def __init__(
        self,
        part: Part,
        top: Path,
        carried: Carried,
        later: list[str],
        *,
        allow_changes: bool,
        stop: Stop,
    ) -> None:
        self.stage, self.top, self.carried, self.later = part.stage, top, carried, later
        self.allow_changes, self.stop = allow_changes, stop
        self.declared = part.config
        config = part.config.model_copy(deep=True)
        config._places = part.config._places
        carried.apply(config)
        if self.stage.kind == "train" and self.stage.source is not None:
            config.rollout.data = str((top / self.stage.source / DATA).resolve())
        self.config = config
        self.folder = RunFolder(top / part.name)

    def done(self) -> Found:
        """What it came to, in this process or in an earlier one."""
        self.folder.check(self.config, allow_changes=self.allow_changes)
        kind = self.stage.kind
        if self._was_done():
            console.print(f"{self.folder.path} is finished", soft_wrap=True)
            found: Found = json.loads(self.folder.summary.read_text())
        else:
            self._refuse_if_later_ones_began()
            found = {"train": self._trained, "collect": self._collected}.get(
                kind, self._evaluated
            )()
        if kind == "train":
            summary.check_trained(found, self.folder.read_metrics())
            latest = checkpoint.named(self.folder, checkpoint.LATEST)
            self.carried.add(self.declared, self.stage.name, latest)
        return found

    def _was_done(self) -> bool:
        if self.stage.kind == "train":
            return is_finished(self.folder, self.config)
        return self.folder.summary.is_file()

    def _refuse_if_later_ones_began(self) -> None:
        for name in self.later:
            if (self.top / name / "config.yaml").is_file():
                raise ConfigError(
                    f"{self.top / name} has begun after stage {self.stage.name!r} as it was; to "
                    "go on with that one, choose another --output"
                )

    def _trained(self) -> Found:
        return to_the_end(
            validate(self.config),
            self.folder,
            allow_changes=self.allow_changes,
            stop=self.stop,
            begin=self._begin,
            again=self.top,
        )

    def _begin(self, run: Run) -> None:
        for line in self.carried.begin(run, self.declared, self.stage):
            console.print(line, soft_wrap=True, highlight=False)

    def _collected(self) -> Found:
        options = self.stage.collect
        assert options is not None, "a stage that collects"
        with self.folder.started(self.config, allow_changes=self.allow_changes):
            if self.stage.source is not None:
                episodes = stored(RunFolder(self.top / self.stage.source), "train")
            else:
                run = build(validate(self.config))
                with running(run):
                    self._begin(run)
                    rollout = asyncio.run(played_now(run))
                episodes = [*rollout.episodes, *rollout.unused]
                write_parquet(self.folder.episode_file(0), episodes, step=0)
            found = write_rows(self.config, episodes, options, self.folder.path / DATA)
            run_folder.write_aside(self.folder.summary, json.dumps(found, indent=2) + "\n")
        return found

    def _evaluated(self) -> Found:
        with self.folder.started(self.config, allow_changes=self.allow_changes):
            run = build(validate(self.config))
            with running(run):
                self._begin(run)
                asyncio.run(self._scored(run))
            return summarised(self.folder, self.config)

    async def _scored(self, run: Run) -> None:
        asyncio.get_running_loop().set_task_factory(task_factory)
        await train_step.publish(run, list(run.learners))
        name = "evaluation-000000"
        journal = evaluation_journal(self.folder.journal, self.config, run.test, of=name)
        found = await evaluate_run(
            run, run.test, file=self.folder.path / f"{name}.parquet", journal=journal
        )
        self.folder.forget_after(-1)  # of an evaluation that was stopped here
        record = {"kind": "evaluation", "step": 0, "when": "after", "split": TEST, **found}
        self.folder.append_metrics(record)
        journal.remove()
        terminal.show_evaluation(record)


def _write(folder: RunFolder, found: list[Found]) -> None:
    text = json.dumps({"stages": found}, indent=2) + "\n"
    run_folder.write_aside(folder.summary, text)
    stages_page.write(folder.path, found)


def _told(part: Part, number: int, of: int) -> str:
    config = part.config
    what = {
        "train": f"{config.algorithm.name}, {config.trainer.steps} steps",
        "collect": "collects a data set",
        "evaluate": "an evaluation",
    }
    return f"Stage {part.name} ({number + 1} of {of}): {what[part.stage.kind]}"


def _declared(parts: list[Part]) -> str:
    """A file with these stages, each with all its keys, so that it stands for itself."""
    stages = []
    for part in parts:
        config = run_folder.resolved(part.config)
        del config["output"]
        stages.append(part.stage.model_dump(mode="json", exclude_none=True) | config)
    return yaml.safe_dump({"stages": stages}, sort_keys=False)


def _check_begun(top: Path, parts: list[Part], *, allow_changes: bool) -> None:
    """Raises ConfigError where a stage that has begun is not what it was, or not where it was."""
    if not top.is_dir():
        return
    if not (top / STAGES).is_file():
        if any(entry.name != run_folder.LOCK for entry in top.iterdir()):
            raise ConfigError(f"{top} is not empty and holds no run with stages")
        return
    for number, old in enumerate(load_stages(top / STAGES)):
        new = parts[number].stage if number < len(parts) else None
        if (top / old.name / "config.yaml").is_file() and new != old and not allow_changes:
            raise ConfigError(
                f"{top / old.name} has begun as stage {number + 1} of another list of stages; "
                "choose another --output"
            )


def _given_output(source: Path, overrides: list[str]) -> Path | None:
    name = load_stages(source, overrides)[0].name
    found = load_plan(source, [*overrides, f"stage={name}"]).config.output
    return None if found is None else Path(found)


def _unnamed(name: str, parts: list[Part], *, resume: bool) -> RunFolder:
    """`runs/NAME`, or the next number where another or a finished run is there."""
    folder, number = RunFolder(Path("runs") / name), 1
    while folder.path.exists() and not resume and not _continues(folder, parts):
        number += 1
        folder = RunFolder(Path("runs") / f"{name}-{number}")
    return folder


def _continues(folder: RunFolder, parts: list[Part]) -> bool:
    """Whether an unnamed run would go on in this folder: the same stages, and not all finished."""
    file = folder.path / STAGES
    if not file.is_file() or file.read_text() != _declared(parts):
        return False
    if not folder.summary.is_file():
        return True
    return len(json.loads(folder.summary.read_text())["stages"]) < len(parts)
