"""`rolecall eval`: scores a checkpoint of a run, or the untrained team of a config."""

from __future__ import annotations

import asyncio
import json
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from rolecall.config.load import find, load
from rolecall.config.schema import Config
from rolecall.core.errors import ConfigError, nearest
from rolecall.core.json_types import Record
from rolecall.core.types import Task
from rolecall.monitor import summary, terminal
from rolecall.monitor.comparison import TEST
from rolecall.runs.plain_team import check_base, plan_team
from rolecall.runs.run_paths import is_run
from rolecall.runs.services import running
from rolecall.runtime.call_tree import task_factory
from rolecall.runtime.consoles import PlainConsole
from rolecall.setup.build import build
from rolecall.setup.plan import load_plan
from rolecall.storage import checkpoint
from rolecall.storage.evaluation_journal import EvaluationJournal, evaluation_journal
from rolecall.storage.run_folder import RunFolder
from rolecall.storage.whole_files import write_atomically
from rolecall.training import train_step
from rolecall.training.evaluating import evaluate_run
from rolecall.training.run import Run


def add_models(
    file: Path, overrides: list[str], *, all_of_them: str | None, given: list[str]
) -> list[str]:
    """Return the overrides with further ones that set the bases of policies.

    `all_of_them` becomes the base of every policy, each POLICY=MODEL of `given` that of one, and a
    MODEL without a policy that of all others.
    Raises ConfigError for an unknown policy.

    A policy whose server takes text has no base, so it keeps its own model.
    """
    config = load(file, overrides)
    for model in (one for one in given if "=" not in one):
        if all_of_them is not None:
            raise ConfigError(
                f"--model {model}: {all_of_them} is the model of all policies already; write "
                "POLICY=MODEL, or one of the two"
            )
        check_base(model)
        all_of_them = model
    named = dict(_pair(config, one) for one in given if "=" in one)
    bases = {} if all_of_them is None else dict.fromkeys(_with_bases(config), all_of_them)
    bases |= named
    return [
        *overrides,
        *(f"policies.{name}.base={json.dumps(base)}" for name, base in sorted(bases.items())),
    ]


def _with_bases(config: Config) -> list[str]:
    names = [name for name in config.policies if not config.takes_text(name)]
    if not names:
        raise ConfigError("--model: servers sample all policies of this team; it takes no model")
    return names


def _pair(config: Config, given: str) -> tuple[str, str]:
    policy, _, model = given.partition("=")
    if not model:
        raise ConfigError(f"--model {given}: write POLICY=MODEL, e.g. solver=Qwen/Qwen3-4B")
    if policy not in config.policies:
        near = nearest(policy, list(config.policies))
        raise ConfigError(f"--model {given}: there is no policy {policy!r}; {near}")
    if config.takes_text(policy):
        raise ConfigError(
            f"--model {given}: a server samples this policy; "
            f"set policies.{policy}.engine.model instead"
        )
    return policy, model


console = PlainConsole()


def evaluate(
    source: str | None,
    overrides: list[str],
    *,
    checkpoint_name: str,
    recipe: str | None = None,
    models: list[str] | None = None,
    environment: str | None = None,
    number: int | None = None,
    output: Path | None = None,
) -> Record:
    """Score a run's checkpoint, a config's untrained team, or with a `recipe` a model that its team
    is made of; `models` are MODEL or POLICY=MODEL. Without a `source` the models play an
    `environment`. `number`: how many held-out tasks are played, by default as the config says.

    What was said and scored is kept in `output`, or in a run's folder: an evaluation that was
    stopped goes on there.
    """
    folder = None
    if source is None:
        if environment is None:
            raise ConfigError(
                "name a run, a config, or --model MODEL with --environment NAME or --recipe NAME"
            )
        plan = plan_team(environment, models or [], overrides, number=number)
    elif (folder := _find_run(source, recipe, models or [])) is not None:
        plan = load_plan(folder.config, overrides)
    else:
        file = find(recipe or source)
        model = source if recipe else None
        bases = add_models(file, overrides, all_of_them=model, given=models or [])
        plan = load_plan(file, bases, is_trained=False)
    if plan.config.evaluation.tasks == 0:
        raise ConfigError("evaluation.tasks: 0 leaves nothing to evaluate; write at least 1")
    with ExitStack() as stack:
        saved = stack.enter_context(checkpoint.held(folder, checkpoint_name)) if folder else None
        run = build(plan)
        if number is not None:
            run.test = spread(run.test, number)
        if folder is not None:
            output = output or folder.evaluated
        kept = None if output is None else _kept(run, output, saved)
        with running(run), terminal.notices(console):
            if saved:
                run.restore(saved)
                stack.close()
            result = _evaluated(run, kept)
    result = {"split": TEST, **result}
    if kept is not None:
        of = {"step": kept.step} if folder else {"source": source}
        _keep(kept, {**of, "overrides": overrides, **result})
    shown = source if recipe else "untrained" if source else environment or ""
    name = _told_as(checkpoint_name, folder) if folder else shown
    terminal.show_evaluation({"when": name, **result})
    return result


def spread(tasks: list[Task], number: int) -> list[Task]:
    """Return this many tasks, as many of each source as there are; all where there are fewer."""
    by_source: dict[str, list[Task]] = {}
    for task in tasks:
        by_source.setdefault(task.source, []).append(task)
    rounds = zip_longest(*by_source.values())
    chosen = [task for one in rounds for task in one if task is not None][:number]
    names = {task.id for task in chosen}
    return [task for task in tasks if task.id in names]


def _find_run(source: str, recipe: str | None, models: list[str]) -> RunFolder | None:
    """Return the run that is meant, if it is one. Raises ConfigError for a model without a team."""
    path = Path(source)
    if recipe is not None or not is_run(path):
        return None
    if not (path / "config.yaml").exists() and (path / "config.json").exists():
        raise ConfigError(f"{source} is a model and no run; name the team it plays: --recipe NAME")
    if models:
        raise ConfigError(
            f"--model {models[0]}: {source} is a run, whose checkpoints have the weights; "
            "name a recipe or a YAML file instead"
        )
    return RunFolder.existing(path)


@dataclass(frozen=True, slots=True)
class Kept:
    """The files that an evaluation writes."""

    step: int
    episodes: Path
    record: Path
    journal: EvaluationJournal


def _kept(run: Run, folder: Path, saved: Path | None) -> Kept:
    """Return where an evaluation is kept; raises ConfigError if the folder is a file."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--output {folder}: {error.strerror}; name a folder") from error
    step = checkpoint.checkpoint_step(saved) if saved else 0
    weights = checkpoint.identity(saved) if saved else ""
    name = f"evaluation-{step:06d}"
    journal = evaluation_journal(folder, run.config, run.test, of=f"{name} {weights}")
    return Kept(step, folder / f"{name}.parquet", folder / f"{name}.json", journal)


def _evaluated(run: Run, kept: Kept | None) -> Record:
    """Evaluate a run; raises KeyboardInterrupt if it is stopped."""
    try:
        return asyncio.run(_evaluate(run, kept))
    except KeyboardInterrupt:
        if kept is not None:
            message = "Stopped. The same command goes on with what has been played"
            console.print(message, soft_wrap=True, highlight=False)
        raise


async def _evaluate(run: Run, kept: Kept | None) -> Record:
    asyncio.get_running_loop().set_task_factory(task_factory)
    await train_step.publish(run, list(run.learners))
    if kept is None:
        return await evaluate_run(run, run.test)
    return await evaluate_run(
        run, run.test, step=kept.step, file=kept.episodes, journal=kept.journal
    )


def _keep(kept: Kept, record: Record) -> None:
    """Another evaluation of the same checkpoint takes the place of the one before."""
    write_atomically(kept.record, json.dumps(record, indent=2) + "\n")
    kept.journal.remove()


def _told_as(name: str, folder: RunFolder) -> str:
    """Return a checkpoint's name; `best` has that of the split on which it was chosen."""
    if name != checkpoint.BEST:
        return name
    chosen = summary.best(folder.read_metrics())
    return summary.best_name(chosen["chosen_on"] if chosen else TEST)
