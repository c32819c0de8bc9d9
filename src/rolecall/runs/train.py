"""`rolecall train`: trains until the last step, or until it is told to stop."""

from __future__ import annotations

from pathlib import Path

from rolecall.config.load import find
from rolecall.config.schema import Config
from rolecall.core.errors import ConfigError
from rolecall.core.json_types import Record
from rolecall.monitor import summary, terminal
from rolecall.runs.agents_table import agents_table, find_differences
from rolecall.runs.finished import is_finished, summarise
from rolecall.runs.run_paths import is_run
from rolecall.runs.stage_list import is_staged
from rolecall.runs.stop import Stop
from rolecall.runtime import progress
from rolecall.runtime.consoles import PlainConsole
from rolecall.runtime.interrupts import ends_at_once
from rolecall.runtime.progress import activity
from rolecall.setup.plan import load_plan
from rolecall.storage.config_changes import UNNAMED_MAY_CHANGE, matches_any
from rolecall.storage.run_folder import RunFolder

console = PlainConsole()


def train(
    source: str,
    overrides: list[str],
    *,
    output: Path | None,
    resume: bool,
    allow_changes: bool = False,
    checkpoint: str | None = None,
    stop: Stop | None = None,
) -> Record:
    """Train until the last step; a run folder as `source` continues that run. Returns the summary.

    With `checkpoint` (step-N, best or latest) a new run goes on from that one of the run's.

    Raises RunFailedError where nothing was trained or most episodes failed, and StoppedError
    where the process was told to end. What a run needs is imported when it begins: that takes
    seconds, and what is wrong with a config is told before.
    """
    with terminal.notices(console):
        path = Path(source)
        if checkpoint is not None:
            path, allow_changes = _fork(path, checkpoint, overrides, output, resume), True
        elif is_staged(path, overrides):
            from rolecall.runs import stages

            return stages.train(
                path if path.is_dir() else find(source),
                overrides,
                output=output,
                resume=resume,
                allow_changes=allow_changes,
                stop=stop or Stop(),
            )
        if is_run(path):
            folder = RunFolder.existing(path)
            plan = load_plan(folder.config, overrides)
        else:
            plan = load_plan(find(source), overrides)
            folder = _folder(plan.config, path.stem, output=output, resume=resume)
        config = plan.config
        folder.check_place()
        folder.check(config, allow_changes=allow_changes)
        if is_finished(folder, config):
            console.print(
                f"{folder.path} is finished: {config.trainer.steps} steps", soft_wrap=True
            )
            result = summarise(folder, config)
            summary.check_trained(result, folder.read_metrics())
            return result
        console.print(agents_table(find_differences(plan)))
        shown = path if is_run(path) else source
        console.print(f"All settings: rolecall check {shown}", soft_wrap=True, highlight=False)
        with ends_at_once(), activity("importing PyTorch and transformers"):
            from rolecall.models.cpu import warming

            compiling = None  # shown for as long as this function holds it
            if (process := warming.begin()) is not None:
                compiling = warming.compiling(process)
                progress.begin(compiling)
                console.print(
                    "First run on this machine: loops are compiled once, which takes up to a minute"
                )
            from rolecall.runs.one_run import finish

        result = finish(plan, folder, allow_changes=allow_changes, stop=stop or Stop())
        console.print(f"Wrote {folder.path}: report.html, curves.png, summary.json", soft_wrap=True)
        summary.check_trained(result, folder.read_metrics())
        return result


def _fork(
    path: Path, checkpoint: str, overrides: list[str], output: Path | None, resume: bool
) -> Path:
    """Return the run folder that goes on from a checkpoint. Raises ConfigError."""
    from rolecall.runs.forking import check_steps, fork

    if not is_run(path):
        raise ConfigError(f"--checkpoint: {path} is no run folder; write one, such as runs/mine")
    if resume:
        raise ConfigError("--checkpoint begins a new run, and --resume continues one; write one")
    original = RunFolder.existing(path)
    check_steps(original, checkpoint, load_plan(original.config, overrides).config.trainer.steps)
    folder = fork(path, checkpoint, output)
    console.print(f"{folder.path} goes on from {checkpoint} of {path}", soft_wrap=True)
    return folder.path


def _folder(config: Config, name: str, *, output: Path | None, resume: bool) -> RunFolder:
    chosen = output or (Path(config.output) if config.output else None)
    if chosen is not None:
        return _without_stages(chosen) if resume else RunFolder(chosen)
    folder, number = RunFolder(Path("runs") / name), 1
    if resume:
        return _without_stages(folder.path)
    while folder.path.exists() and not (folder.is_blank() or _continues(folder, config)):
        number += 1
        folder = RunFolder(Path("runs") / f"{name}-{number}")
    return folder


def _without_stages(path: Path) -> RunFolder:
    """Return the folder of a run that goes on. Raises ConfigError if it is none or has stages."""
    folder = RunFolder.existing(path)
    if folder.path != path:
        raise ConfigError(f"{path} is a run with stages; continue it with: rolecall train {path}")
    return folder


def _continues(folder: RunFolder, config: Config) -> bool:
    """Return whether an unnamed run would go on in this folder: same config, and not finished."""
    if not folder.config.is_file():
        return False
    try:
        changes = folder.changes(config)
    except ConfigError:  # it cannot be read, so it is no run to go on with
        return False
    same = all(matches_any(key, UNNAMED_MAY_CHANGE) for key in changes)
    return same and not is_finished(folder, config)
