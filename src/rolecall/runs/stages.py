"""Runs the stages of a config one after the other, each in its own folder of the run's folder."""

from __future__ import annotations

import json
from pathlib import Path

from rolecall.config.load import load_stages
from rolecall.core.errors import ConfigError
from rolecall.monitor import stages_page
from rolecall.runs.one_run import make_room
from rolecall.runs.one_stage import Found, StageRun
from rolecall.runs.stage_list import Part, read, write_stages
from rolecall.runs.stop import Stop
from rolecall.runtime.consoles import PlainConsole
from rolecall.setup.plan import load_plan
from rolecall.setup.stage_handover import Carried
from rolecall.storage import run_folder
from rolecall.storage.run_folder import STAGES, RunFolder

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
        carried, results = Carried(), []
        for number, planned in enumerate(parts):
            console.print(_told(planned, number, len(parts)), soft_wrap=True, highlight=False)
            later = [other.name for other in parts[number + 1 :]]
            one = StageRun(
                planned, folder.path, carried, later, allow_changes=allow_changes, stop=stop
            )
            results.append({"name": planned.name, "kind": planned.stage.kind, **one.run()})
            _write(folder, results)
            make_room()
    console.print(f"Wrote {folder.path}: report.html, summary.json, a folder for each stage")
    return {"stages": results}


def _declare(folder: RunFolder, text: str) -> None:
    """Write the list of stages; the summary of another list goes."""
    file = folder.path / STAGES
    if not file.is_file() or file.read_text() != text:
        folder.summary.unlink(missing_ok=True)
        run_folder.write_aside(file, text)


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


def _check_begun(top: Path, parts: list[Part], *, allow_changes: bool) -> None:
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


def _unnamed(name: str, parts: list[Part], *, resume: bool) -> RunFolder:
    """Return `runs/NAME`, or the next number if another or a finished run is there."""
    folder, number = RunFolder(Path("runs") / name), 1
    while folder.path.exists() and not resume and not _continues(folder, parts):
        if not (folder.path / STAGES).exists() and folder.is_blank():
            break
        number += 1
        folder = RunFolder(Path("runs") / f"{name}-{number}")
    return folder


def _continues(folder: RunFolder, parts: list[Part]) -> bool:
    """Return whether an unnamed run would go on here: the same stages, and not all finished."""
    file = folder.path / STAGES
    if not file.is_file() or file.read_text() != write_stages(parts):
        return False
    if not folder.summary.is_file():
        return True
    return len(json.loads(folder.summary.read_text())["stages"]) < len(parts)
