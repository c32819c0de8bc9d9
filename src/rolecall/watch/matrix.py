"""Answers what `rolecall crossplay` wrote: agents of one run with those of another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rolecall.core.json_types import JsonObject
from rolecall.watch.clean_json import finite, load_clean
from rolecall.watch.models import Matrix, Missing, Number
from rolecall.watch.refusals import UnknownNameError
from rolecall.watch.runs import WatchedRun

FILE = "crossplay.json"


def answer_matrix(run: WatchedRun, name: str | None) -> Matrix:
    """Return a matrix of the run, the first one if none is named."""
    record, why = _read(run.path / "evaluated" / FILE)
    tables = record.get("matrices")
    named = {
        _name(table): table
        for table in (tables if isinstance(tables, list) else ())
        if isinstance(table, dict)
    }
    if not named:
        why = why or "the file has no matrices"
        return Matrix(
            run=run.name, name="", names=[], rows=[], columns=[], values=[], margins=[], note="",
            missing=[Missing(what="matrix", why=why)],
        )  # fmt: skip
    chosen = name or next(iter(named))
    if chosen not in named:
        raise UnknownNameError(f"run {run.name!r} has no matrix {chosen!r}")
    table = named[chosen]
    labels = _labels(record, _texts(table.get("runs")))
    return Matrix(
        run=run.name,
        name=chosen,
        names=[*named],
        rows=labels,
        columns=labels,
        values=_numbers(table.get("mean")),
        margins=_numbers(table.get("margin")),
        note=_note(record, table),
        missing=[],
    )


def _read(file: Path) -> tuple[JsonObject, str]:
    try:
        record = load_clean(file.read_text(errors="replace"))
    except FileNotFoundError:
        return {}, "`rolecall crossplay RUN OTHER` has not been run on it"
    except (OSError, ValueError):
        return {}, f"{FILE} cannot be read"
    return (record, "") if isinstance(record, dict) else ({}, f"{FILE} has no matrices")


def _name(table: JsonObject) -> str:
    others = ", ".join(_texts(table.get("others")))
    return f"{table.get('agent', '')} with {others}"


def _labels(record: JsonObject, letters: list[str]) -> list[str]:
    """Return `A: math, step 12` for each run; names of folders, and not their paths."""
    runs: Any = record.get("runs")
    labels = []
    for letter in letters:
        one = runs.get(letter) if isinstance(runs, dict) else None
        if isinstance(one, dict):
            folder = Path(str(one.get("path", ""))).name
            labels.append(f"{letter}: {folder}, step {one.get('step', '?')}")
        else:
            labels.append(letter)
    return labels


def _note(record: JsonObject, table: JsonObject) -> str:
    owner = table.get("of")
    whose = "the team's score" if owner == "team" else f"{owner}'s own score"
    others = ", ".join(_texts(table.get("others")))
    return (
        f"{whose}: {table.get('agent')} of the row's run, {others} of the column's; "
        f"{record.get('num_tasks', '?')} tasks, {record.get('samples', '?')} attempts at each"
    )


def _texts(values: Any) -> list[str]:
    return [str(one) for one in values] if isinstance(values, list) else []


def _numbers(values: Any) -> list[list[Number]]:
    lines = values if isinstance(values, list) else []
    return [[finite(one) for one in line] for line in lines if isinstance(line, list)]
