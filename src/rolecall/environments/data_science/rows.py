"""Reads DSBench's modelling rows and makes tasks that name their files.

A row says where the files are, the companion file how they are scored:
{task_id: {cleaned_prompt, metric, target_column, id_column}}.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from rolecall.core.json_types import JsonObject
from rolecall.core.types import Task
from rolecall.data.files import Row
from rolecall.data.tasks import IncompleteRowError, given_id, read_tasks
from rolecall.environments.data_science.generated import describe_submission
from rolecall.grading.submissions import Grading, Table, grade, read_table, write_table
from rolecall.grading.tabular import constant, metric_named

COMPANION = "*cleaned_prompts.json"
TASK_ID = "metadata.task_id"


def modelling_tasks(
    path: Path,
    *,
    prompts: Path | None = None,
    root: Path | None = None,
    by_type: bool = False,
) -> list[Task]:
    """Return the tasks of a file, in its order; by default `prompts` lies beside it.

    `by_type`: the source of a task is dsbench-classification or dsbench-regression, as the
    companion file says; what rows say themselves is wrong for some.

    Paths of rows are relative to `root`, by default the folder of the file. The files are opened
    with the task and not before. Rows without a record in the companion file are left out and
    counted, unless most are. Raises ValueError naming file and row.
    """
    records = _records(prompts or _companion(path))

    def make(row: Row, name: str) -> Task:
        try:
            return _task(row, name, records, root=root or path.parent, by_type=by_type)
        except (KeyError, TypeError) as error:
            raise ValueError(repr(error)) from error

    return read_tasks(path, make, ids=(TASK_ID,))


def _task(row: Row, name: str, records: JsonObject, *, root: Path, by_type: bool) -> Task:
    _, key = given_id(row, (TASK_ID,))
    if key not in records:
        raise IncompleteRowError(
            f"the companion file has no record of {key!r}, the row's {TASK_ID}: how it is scored "
            "is not known"
        )
    metadata, record = row["metadata"], records[key]
    targets = record["target_column"]
    grading = Grading(
        metric=record["metric"],
        targets=[targets] if isinstance(targets, str) else list(targets),
        id_column=record["id_column"],
    )
    prompt = f"{record.get('cleaned_prompt') or row['prompt']}\n\n{describe_submission(grading)}"
    info = {
        "source": f"dsbench-{record['task_type']}" if by_type else "dsbench",
        "grading": asdict(grading),
        "paths": {
            "train.csv": str(root / metadata["train_file"]),
            "test.csv": str(root / metadata["test_file"]),
        },
        "answers": str(root / metadata["answer_dir"]),  # a folder: no answer that could be shown
        "best": record.get("best"),
        "baseline": record.get("baseline"),
    }
    return Task(name, prompt, info=info)


def _companion(path: Path) -> Path:
    paths = sorted(path.parent.glob(COMPANION))
    if len(paths) != 1:
        raise ValueError(f"{path}: {len(paths)} files {COMPANION} beside it: name one as `prompts`")
    return paths[0]


def _records(path: Path) -> JsonObject:
    try:
        records = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: no companion file: {error}") from error
    if not isinstance(records, dict):
        raise ValueError(f"{path}: a companion file holds one object, by task_id")
    return records


def read_grading(task: Task) -> Grading:
    return Grading(**task.info["grading"])


def read_inputs(task: Task) -> dict[str, bytes]:
    """Return the files given to the team. Raises ValueError that names a file that is not there."""
    if "files" in task.info:
        return {name: text.encode() for name, text in task.info["files"].items()}
    return {name: _content(path, task=task) for name, path in task.info["paths"].items()}


def read_truth(task: Task) -> Table:
    """Return the held-out rows. Raises ValueError that names a file that is not there."""
    if "files" in task.info:
        return read_table(str(task.answer).encode())
    folder = task.info["answers"]
    paths = sorted(Path(folder).glob("*.csv"))
    if len(paths) != 1:
        raise ValueError(f"task {task.id}: {len(paths)} CSV files in {folder}: one is needed")
    return read_table(_content(str(paths[0]), task=task))


def score_range(task: Task, truth: Table) -> tuple[float, float]:
    """Return (baseline, best) of the row, else of the best constant and of a perfect answer."""
    grading = read_grading(task)
    baseline, best = task.info["baseline"], task.info["best"]
    if best is None:
        best = 1.0 if metric_named(grading.metric).higher else 0.0
    if baseline is None:
        train = read_table(read_inputs(task)["train.csv"])
        ids = truth[grading.id_column]
        guess = {grading.id_column: ids}
        for column in grading.targets:
            if column not in train:
                raise ValueError(f"task {task.id}: train.csv has no column {column!r}")
            guess[column] = [constant(grading.metric, train[column])] * len(ids)
        baseline = grade(write_table(guess), truth, grading)
    return float(baseline), float(best)


def _content(path: str, *, task: Task) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"task {task.id}: its file {path} cannot be read: {error}") from error
