"""`rolecall collect`: plays episodes, or reads those of a run, and writes a data set of them."""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rolecall.config.data_set_export import CollectConfig
from rolecall.config.load import find
from rolecall.config.schema import Config
from rolecall.core.errors import ConfigError
from rolecall.core.json_types import Record
from rolecall.core.types import Episode
from rolecall.data.writing import check_name, write_rows
from rolecall.demonstrations.data_set import COLUMNS, make_rows
from rolecall.demonstrations.offline_data import fingerprint
from rolecall.rollout.episodes import Rollout
from rolecall.rollout.group_player import Collection
from rolecall.runs.plain_team import plan_team
from rolecall.runs.run_paths import is_run
from rolecall.runs.services import running
from rolecall.runtime.call_tree import task_factory
from rolecall.runtime.consoles import PlainConsole
from rolecall.runtime.file_locks import LockHeldError, locked_file
from rolecall.setup.build import build
from rolecall.setup.plan import load_plan
from rolecall.setup.validate_options import unknown_agents
from rolecall.setup.weights import load_tokenizers
from rolecall.storage import checkpoint
from rolecall.storage.episode_io import read_parquet
from rolecall.storage.evaluation_journal import evaluation_journal
from rolecall.storage.loaded_run import FILES
from rolecall.storage.numbered import iterate_numbered
from rolecall.storage.run_folder import RunFolder
from rolecall.training import train_step
from rolecall.training.run import Run

console = PlainConsole()


def collect(
    source: str | None,
    overrides: list[str],
    *,
    output: Path,
    options: CollectConfig,
    checkpoint_name: str,
    played: str | None,
    models: list[str] | None = None,
    environment: str | None = None,
    number: int | None = None,
) -> Record:
    """Write what a run's checkpoint or a config's untrained team says on the tasks of one step.

    Without a `source` the `models` play an `environment`; `number`: how many episodes are played.
    With `played` nothing is played: the rows are of episodes of this split that the run has
    stored. Returns the counts that are also printed. Raises ConfigError for what does not fit, and
    RuntimeError where every episode failed.
    """
    try:
        check_name(output)
        output.parent.mkdir(parents=True, exist_ok=True)  # before hours of playing, not after
    except (ValueError, OSError) as error:
        raise ConfigError(f"--output: {error}") from error
    if played not in (None, *FILES):
        raise ConfigError(f"--played: no split {played!r}; write one of: {', '.join(FILES)}")
    folder = None
    if source is None:
        plan = plan_team(environment or "", models or [], overrides, number=number)
        names = list(plan.config.team)
        if other := sorted(set(options.agents) - set(names)):
            raise ConfigError(f"--agent: no agent {other[0]!r}; write one of: {', '.join(names)}")
        options = options.model_copy(update={"agents": options.agents or names})
    else:
        path = Path(source)
        folder = RunFolder.existing(path) if is_run(path) else None
        if number is not None:
            raise ConfigError(
                f"-n {number}: {source} says how many tasks and attempts are played; write "
                "rollout.groups and rollout.group_size"
            )
        plan = load_plan(folder.config if folder else find(source), overrides)
    if source and (problems := unknown_agents(plan.config, options.agents, key="--agent")):
        raise ConfigError(*problems)
    if played is not None:
        if folder is None:
            raise ConfigError(
                f"--played: {source or environment} has played nothing; name a run folder"
            )
        return write(plan.config, read_episodes(folder, played), options, output)
    with _writing(output) as work_folder, ExitStack() as stack:
        saved = stack.enter_context(checkpoint.held(folder, checkpoint_name)) if folder else None
        run = build(plan)
        with running(run):
            if saved:
                run.restore(saved)
                stack.close()
            weights = checkpoint.identity(saved) if saved else ""
            try:
                rollout = asyncio.run(play_now(run, work_folder, weights=weights))
            except KeyboardInterrupt:
                message = "Stopped. The same command goes on with what has been played"
                console.print(message, soft_wrap=True, highlight=False)
                raise
        return write(plan.config, [*rollout.episodes, *rollout.unused], options, output)


@contextmanager
def _writing(output: Path) -> Iterator[Path]:
    """Yield a folder beside a file that only this process writes; remove it after success.

    Raises ConfigError where another process writes the file.
    """
    folder = output.with_name(f".{output.name}.unfinished")
    while True:
        folder.mkdir(exist_ok=True)
        try:
            with locked_file(folder / ".lock", wait_s=0.0):
                yield folder
                shutil.rmtree(folder, ignore_errors=True)
                return
        except LockHeldError as error:
            raise ConfigError(
                f"--output: another process writes {output}; wait for it, or name another file"
            ) from error
        except FileNotFoundError:  # the other one has just ended
            if folder.exists():
                raise


async def play_now(run: Run, place: Path, *, weights: str = "") -> Rollout:
    """Return every attempt at the tasks of one step, with the weights that the learners have.

    What is played is kept in `place`, where the next start finds it that has the same keys, tasks
    and `weights`. Raises RuntimeError where every episode failed.
    """
    asyncio.get_running_loop().set_task_factory(task_factory)
    await train_step.publish(run, list(run.learners))
    tasks, size = run.sampler.sample(1), run.config.rollout.group_size
    with evaluation_journal(place, run.config, tasks, of=f"collect {weights}") as kept:
        journal = kept.round(1)
        names = {task.id for task in tasks}
        played = [episode for episode in journal.read() if episode.task.id in names]
        finished = [episode for episode in played if episode.error is None]
        if run.config.deterministic and len(finished) < len(tasks) * size:
            finished = []  # a batch depends on which episodes share it, so all are played again
        journal.drop([episode for episode in played if episode not in finished])
        collection = Collection(
            run.context, tasks, step="collect", group_size=size, journal=journal, finished=finished
        )
        try:
            await collection.wait()
            rollout = collection.take()
        finally:
            journal.close()
    if not rollout.groups:
        raise RuntimeError(f"every episode failed; the first: {rollout.first_error}")
    return rollout


def read_episodes(folder: RunFolder, split: str) -> list[Episode]:
    """Read the episodes of a split that a run has played; raises ConfigError if there are none."""
    subfolder, kind = FILES[split]
    files = list(iterate_numbered(folder.path / subfolder, "parquet", kind=kind))
    if not files:
        raise ConfigError(f"{folder.path} holds no episodes of the {split} split")
    if kind == "step":
        return [episode for _, file in files for episode in read_parquet(file)]
    return [
        _renamed(episode, f"{kind}-{step}")
        for step, file in files
        for episode in read_parquet(file)
    ]


def _renamed(episode: Episode, prefix: str) -> Episode:
    """Tell the evaluations of a run apart, whose episodes have the same ids after every step."""

    def rename(name: str) -> str:
        return f"{prefix}/{name}"

    episode.id = rename(episode.id)
    for turn in episode.turns:
        turn.id, turn.episode = rename(turn.id), episode.id
        turn.parents = tuple(map(rename, turn.parents))
    return episode


def write(config: Config, episodes: list[Episode], options: CollectConfig, output: Path) -> Record:
    """Write the rows of these episodes, and say how many there are."""
    tokenizers = load_tokenizers(config)
    prints = {name: fingerprint(tokenizer) for name, tokenizer in tokenizers.items()}
    rows = make_rows(episodes, options, tokenizers=prints)
    write_rows(output, rows, columns=COLUMNS[options.kind])
    failed = sum(episode.error is not None for episode in episodes)
    corrections = sum(episode.metrics.get("count/corrections", 0.0) for episode in episodes)
    summary = {
        "file": str(output),
        "data": options.kind,
        "rows": len(rows),
        "agents": dict(Counter(row["agent"] for row in rows)),
        "tasks": len({row["task"] for row in rows}),
        "episodes": len(episodes),
        "failed_episodes": failed,
    }
    if corrections:
        summary["corrections"] = int(corrections)
        summary["right_corrections"] = sum(
            "finish" in row and "completion_ids" not in row for row in rows
        )
    console.print(_told(summary), soft_wrap=True, highlight=False)
    return summary


def _told(found: Record) -> str:
    source = f"{found['episodes']} episodes"
    if found["failed_episodes"]:
        source += f", of which {found['failed_episodes']} failed"
    if not found["rows"]:
        return (
            f"Wrote {found['file']}: no {found['data']}, because no turn of {source} is asked for; "
            "nothing can be trained on it"
        )
    by_agent = ", ".join(f"{name} {number}" for name, number in found["agents"].items())
    line = (
        f"Wrote {found['file']}: {found['rows']} {found['data']} ({by_agent}) of {found['tasks']} "
        f"tasks, from {source}"
    )
    if "corrections" in found:
        right, written = found["right_corrections"], found["corrections"]
        line += f"; {right} of the teacher's {written} corrections were right and are kept"
    return line
