"""Runs the stages of a config one after the other, each in its own folder of the run's folder."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

from rolecall.config.load import load_stages
from rolecall.config.schema import Config, Named
from rolecall.config.stages import DATA, takes_experts
from rolecall.core.errors import ConfigError
from rolecall.monitor import stages_page, summary, terminal
from rolecall.monitor.comparison import TEST, evaluations
from rolecall.runs.export_data_set import play_now, read_episodes
from rolecall.runs.export_data_set import write as write_rows
from rolecall.runs.finished import is_finished, summarise
from rolecall.runs.one_run import finish, make_room
from rolecall.runs.services import running
from rolecall.runs.stage_list import PlannedStage, read, write_stages
from rolecall.runs.stop import Stop
from rolecall.runtime.call_tree import task_factory
from rolecall.runtime.consoles import PlainConsole
from rolecall.setup.build import build
from rolecall.setup.plan import load_plan, validate
from rolecall.setup.stage_handover import Carried
from rolecall.storage import checkpoint, run_folder
from rolecall.storage.config_changes import matches_any
from rolecall.storage.episode_io import write_parquet
from rolecall.storage.evaluation_journal import evaluation_journal
from rolecall.storage.run_folder import STAGES, RunFolder
from rolecall.storage.whole_files import write_atomically
from rolecall.training import train_step
from rolecall.training.evaluating import evaluate_run
from rolecall.training.run import Run

Found = dict[str, Any]


class StageRun:
    """A stage with what it takes over from those before it."""

    def __init__(
        self,
        part: PlannedStage,
        top: Path,
        carried: Carried,
        later: list[str],
        *,
        previous: StageRun | None,
        allow_changes: bool,
        stop: Stop,
    ) -> None:
        self.previous = previous
        self.stage, self.top, self.carried, self.later = part.stage, top, carried, later
        self.allow_changes, self.stop = allow_changes, stop
        self.declared = part.config
        config = part.config.model_copy(deep=True)
        config._locations = part.config._locations
        carried.apply(config)
        if self.stage.kind == "train" and self.stage.source is not None:
            file = str((top / self.stage.source / DATA).resolve())
            name = config.algorithm.name
            if takes_experts(name):
                config.algorithm = Named(name=name, **config.algorithm.options | {"experts": file})
            else:
                config.rollout.data = file
        self.config = config
        self.folder = RunFolder(top / part.name)

    def run(self) -> Found:
        """Return the result of the stage, from this process or an earlier one."""
        changes = self.folder.check(self.config, allow_changes=self.allow_changes)
        kind = self.stage.kind
        if self._was_done(changes):
            console.print(f"{self.folder.path} is finished", soft_wrap=True)
            result: Found = json.loads(self.folder.summary.read_text())
        else:
            self._refuse_if_later_ones_began()
            result = {"train": self._trained, "collect": self._collected}.get(
                kind, self._evaluated
            )()
        if kind == "train":
            summary.check_trained(result, self.folder.read_metrics())
            with checkpoint.held(self.folder, checkpoint.LATEST) as latest:
                self.carried.add(self.declared, self.stage.name, latest)
        return result

    def _was_done(self, changes: Collection[str]) -> bool:
        if self.stage.kind == "train":
            return is_finished(self.folder, self.config)
        is_other = self.stage.kind == "evaluate" and any(
            matches_any(key, ("evaluation",)) for key in changes
        )
        return self.folder.summary.is_file() and not is_other

    def _refuse_if_later_ones_began(self) -> None:
        for name in self.later:
            if (self.top / name / "config.yaml").is_file():
                raise ConfigError(
                    f"{self.top / name} has begun after stage {self.stage.name!r} as it was; to "
                    "go on with that one, choose another --output"
                )

    def _trained(self) -> Found:
        return finish(
            validate(self.config),
            self.folder,
            allow_changes=self.allow_changes,
            stop=self.stop,
            begin=self._begin,
            again=["train", str(self.top)],
        )

    def _begin(self, run: Run) -> None:
        for line in self.carried.begin(run, self.declared, self.stage):
            console.print(line, soft_wrap=True, highlight=False)
        if self.stage.kind == "train" and self.previous is not None:
            self._take_over_evaluation(self.previous)

    def _take_over_evaluation(self, previous: StageRun) -> None:
        """Begin with the last evaluation of the stage before, where it scored this very team."""
        scored = [r for r in evaluations(previous.folder.read_metrics()) if r["when"] == "after"]
        if not scored or _what_is_evaluated(previous.declared) != _what_is_evaluated(self.declared):
            return
        file = previous.folder.path / f"evaluation-{scored[-1]['step']:06d}.parquet"
        if file.is_file():
            shutil.copyfile(file, self.folder.path / "evaluation-000000.parquet")
        record = {**scored[-1], "step": 0, "when": "before"}
        record.pop("time/run_s", None)
        self.folder.append_metrics(record)
        terminal.show_evaluation(record)

    def _collected(self) -> Found:
        options = self.stage.collect
        assert options is not None, "a stage that collects"
        with self.folder.hold_started(self.config, allow_changes=self.allow_changes):
            if self.stage.source is not None:
                episodes = read_episodes(RunFolder(self.top / self.stage.source), "train")
            else:
                run = build(validate(self.config))
                with running(run):
                    self._begin(run)
                    rollout = asyncio.run(play_now(run, self.folder.journal))
                episodes = [*rollout.episodes, *rollout.unused]
                write_parquet(self.folder.episode_file(0), episodes, step=0)
            result = write_rows(self.config, episodes, options, self.folder.path / DATA)
            write_atomically(self.folder.summary, json.dumps(result, indent=2) + "\n")
        return result

    def _evaluated(self) -> Found:
        with self.folder.hold_started(self.config, allow_changes=self.allow_changes):
            run = build(validate(self.config))
            with running(run):
                self._begin(run)
                asyncio.run(self._scored(run))
            return summarise(self.folder, self.config)

    async def _scored(self, run: Run) -> None:
        asyncio.get_running_loop().set_task_factory(task_factory)
        await train_step.publish(run, list(run.learners))
        name = "evaluation-000000"
        journal = evaluation_journal(self.folder.journal, self.config, run.test, of=name)
        scores = await evaluate_run(
            run, run.test, file=self.folder.path / f"{name}.parquet", journal=journal
        )
        self.folder.forget_after(-1)  # of an evaluation that was stopped here
        record = {"kind": "evaluation", "step": 0, "when": "after", "split": TEST, **scores}
        self.folder.append_metrics(record)
        journal.remove()
        terminal.show_evaluation(record)


console = PlainConsole()


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
    parts = read(source / STAGES if source.is_dir() else source, overrides)
    chosen = source if source.is_dir() else output or _given_output(source, overrides)
    folder = RunFolder(chosen) if chosen else _unnamed(source.stem, parts, resume=resume)
    if resume and not (folder.path / STAGES).is_file():
        raise ConfigError(f"there is no run with stages in {folder.path}")
    with folder.lock():
        _check_begun(folder.path, parts, allow_changes=allow_changes)
        _declare(folder, write_stages(parts))
        carried, results, one = Carried(), [], None
        for number, planned in enumerate(parts):
            console.print(_told(planned, number, len(parts)), soft_wrap=True, highlight=False)
            later = [other.name for other in parts[number + 1 :]]
            one = StageRun(
                planned, folder.path, carried, later,
                previous=one, allow_changes=allow_changes, stop=stop,
            )  # fmt: skip
            results.append({"name": planned.name, "kind": planned.stage.kind, **one.run()})
            _write(folder, results)
            make_room()
    console.print(f"Wrote {folder.path}: report.html, summary.json, a folder for each stage")
    return {"stages": results}


def _what_is_evaluated(config: Config) -> Found:
    """Return the parts of a config that decide what an evaluation plays and how it is scored."""
    parts = config.model_dump(
        include={"team", "policies", "workflow", "environment", "engine", "learner", "evaluation"}
    )
    for agent in parts["team"].values():
        del agent["algorithm"]
    for policy in parts["policies"].values():
        del policy["optimizer"], policy["reference"], policy["reference_update_every"]
    del parts["evaluation"]["every"]
    return parts | {"seed": config.trainer.seed}


def _declare(folder: RunFolder, text: str) -> None:
    """Write the list of stages; the summary of another list goes."""
    file = folder.path / STAGES
    if not file.is_file() or file.read_text() != text:
        folder.summary.unlink(missing_ok=True)
        write_atomically(file, text)


def _write(folder: RunFolder, found: list[Found]) -> None:
    text = json.dumps({"stages": found}, indent=2) + "\n"
    write_atomically(folder.summary, text)
    stages_page.write(folder.path, found)


def _told(part: PlannedStage, number: int, of: int) -> str:
    config = part.config
    what = {
        "train": f"{config.algorithm.name}, {config.trainer.steps} steps",
        "collect": "collects a data set",
        "evaluate": "an evaluation",
    }
    return f"Stage {part.name} ({number + 1} of {of}): {what[part.stage.kind]}"


def _check_begun(top: Path, parts: list[PlannedStage], *, allow_changes: bool) -> None:
    """Check that begun stages are the same, in the same order; raises ConfigError otherwise."""
    if not top.is_dir():
        return
    if not (top / STAGES).is_file():
        if run_folder.holds_other_things(top):
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
    output = load_plan(source, [*overrides, f"stage={name}"]).config.output
    return None if output is None else Path(output)


def _unnamed(name: str, parts: list[PlannedStage], *, resume: bool) -> RunFolder:
    """Return `runs/NAME`, or the next number if another or a finished run is there."""
    folder, number = RunFolder(Path("runs") / name), 1
    while folder.path.exists() and not resume and not _continues(folder, parts):
        if not (folder.path / STAGES).exists() and folder.is_blank():
            break
        number += 1
        folder = RunFolder(Path("runs") / f"{name}-{number}")
    return folder


def _continues(folder: RunFolder, parts: list[PlannedStage]) -> bool:
    """Return whether an unnamed run would go on here: the same stages, and not all finished."""
    file = folder.path / STAGES
    if not file.is_file() or file.read_text() != write_stages(parts):
        return False
    if not folder.summary.is_file():
        return True
    return len(json.loads(folder.summary.read_text())["stages"]) < len(parts)
