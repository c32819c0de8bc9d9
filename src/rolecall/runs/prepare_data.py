"""Turns the files of a data set into JSON Lines for environments, and counts what is in them."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rolecall.core.types import Task
from rolecall.data.files import Row, read_rows
from rolecall.data.finding import Files
from rolecall.data.known import CORPUS, DataSet
from rolecall.environments.code.rows import code_tasks
from rolecall.environments.data_science.rows import COMPANION, modelling_tasks
from rolecall.environments.math.rows import duplicate_questions, math_tasks
from rolecall.environments.search.rows import search_tasks
from rolecall.grading.math.equivalence import MathJudge
from rolecall.retrieval.corpus import read_passage
from rolecall.runtime.progress import activity
from rolecall.runtime.written_folders import new_folder_beside, replace_folder

MOST_TOLD = 10  # bad rows, and references that are compared as text
LOOKING_S = 300.0  # that references of a split are tried for
READERS: dict[str, Callable[[Path], list[Task]]] = {
    "math": math_tasks,
    "search": search_tasks,
    "code": code_tasks,
    "data_science": modelling_tasks,
}


@dataclass(slots=True)
class Prepared:
    """The contents of the folder."""

    name: str
    kind: str
    folder: str
    rows: dict[str, int] = field(default_factory=dict)  # by split
    repeated: int = 0  # test questions that also occur in train
    first_repeated: list[str] = field(default_factory=list)  # ids in train and test
    as_text: dict[str, list[str]] = field(default_factory=dict)  # split -> references, if any

    def lines(self) -> list[str]:
        """Return lines for people: what there is, and how a config names it."""
        lines = [f"{self.folder}/{split}.jsonl: {rows} rows" for split, rows in self.rows.items()]
        if self.repeated:
            first = " = ".join(self.first_repeated)
            lines.append(f"{self.repeated} test questions also occur in train, first: {first}")
        for split, references in self.as_text.items():
            shown = ", ".join(references[:MOST_TOLD])
            more = f" and {len(references) - MOST_TOLD} more" if len(references) > MOST_TOLD else ""
            lines.append(
                f"{len(references)} references of {split} are compared as text, because no parser "
                f"reads them: {shown}{more}"
            )
        if self.kind == "corpus":
            corpus = f"{self.folder}/{CORPUS}.jsonl"
            return [*lines, f"Serve it: rolecall serve search --index DIR --corpus {corpus}"]
        splits = " ".join(f"environment.{split}={self.folder}" for split in self.rows)
        if self.kind == "data_science":  # to which the paths of the tables are relative
            splits += " environment.root=FOLDER"
        return [*lines, f"Use it: environment={self.kind} {splits}"]


def prepare(data_set: DataSet, files: Files, folder: Path) -> Prepared:
    """Write `folder`/SPLIT.jsonl for each split. Nothing is left there if a row is bad.

    Raises ValueError that names file and row of the bad ones.
    """
    prepared = Prepared(data_set.name, data_set.kind, str(folder))
    tasks: dict[str, Sequence[Task]] = {}
    with new_folder_beside(folder) as aside:
        for split, sources in files.items():
            target = aside / f"{split}.jsonl"
            prepared.rows[split] = _write(data_set, sources, target)
            for companion in {p for s in sources for p in s.parent.glob(COMPANION)}:
                if data_set.kind == "data_science":
                    shutil.copy(companion, aside)
            if split != CORPUS:
                with activity(f"checking {prepared.rows[split]} rows of {split}"):
                    tasks[split] = _read(data_set, target, sources)
        replace_folder(aside, folder)
    if data_set.kind == "math":
        number = sum(len(rows) for rows in tasks.values())
        with activity(f"reading {number} references as values"):
            prepared.as_text = _compared_as_text(tasks)
    if {"train", "test"} <= tasks.keys():
        with activity("comparing the questions of train and test"):
            pairs = duplicate_questions(tasks["train"], tasks["test"])
        prepared.repeated = len(pairs)
        prepared.first_repeated = list(pairs[0]) if pairs else []
    return prepared


def _compared_as_text(tasks: dict[str, Sequence[Task]]) -> dict[str, list[str]]:
    """Return the references that no parser reads, by split; splits without any are left out."""
    judge = MathJudge()
    try:
        by_split = {
            split: judge.unreadable([task.answer for task in rows], limit_s=LOOKING_S)
            for split, rows in tasks.items()
        }
    finally:
        asyncio.run(judge.close())
    return {split: references for split, references in by_split.items() if references}


def _write(data_set: DataSet, sources: list[Path], target: Path) -> int:
    """Write the rows of all sources, one after another, and return how many there are."""
    with target.open("w") as out, activity(f"writing {target.name}", unit="rows") as now:
        for row in _rows(data_set, sources):
            out.write(json.dumps(row, ensure_ascii=False, default=str) + "\n")
            now.done += 1
        return now.done


def _rows(data_set: DataSet, sources: list[Path]) -> Iterator[Row]:
    for source in sources:
        for number, row in read_rows(source):
            if data_set.kind == "corpus":
                try:
                    if not read_passage(row).id:
                        raise ValueError(f"no `id`; columns: {', '.join(row)}")
                except ValueError as error:
                    raise ValueError(f"{source}:{number}: {error}") from error
            yield {data_set.renamed.get(column, column): value for column, value in row.items()}


def _read(data_set: DataSet, target: Path, sources: list[Path]) -> list[Task]:
    """Read the file's tasks as the environment will; all bad rows are reported, by their source."""
    try:
        return READERS[data_set.kind](target)
    except ValueError as error:
        bad = list(_bad(data_set, sources, target.parent))
        if not bad:
            raise
        more = f" and {len(bad) - MOST_TOLD} more" if len(bad) > MOST_TOLD else ""
        raise ValueError("; ".join(bad[:MOST_TOLD]) + more) from error


def _bad(data_set: DataSet, sources: list[Path], folder: Path) -> Iterator[str]:
    """Yield `file:line: why` of each row that the reader refuses by itself."""
    alone = folder / "alone.jsonl"
    for source in sources:
        for number, row in read_rows(source):
            kept = {data_set.renamed.get(column, column): value for column, value in row.items()}
            alone.write_text(json.dumps(kept, default=str))
            try:
                READERS[data_set.kind](alone)
            except ValueError as error:
                yield f"{source}:{number}: {str(error).removeprefix(f'{alone}:1: ')}"
    alone.unlink(missing_ok=True)
