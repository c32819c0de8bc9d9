"""Writes rows as JSON Lines or Parquet; readers see the old file or the whole new one."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from rolecall.data.files import Row

SUFFIXES = (".jsonl", ".parquet")


def check_name(path: Path) -> None:
    """Check that a file is of a kind that can be written; raises ValueError otherwise."""
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{path}: write a file name that ends with {' or '.join(SUFFIXES)}")


def write_rows(path: Path, rows: Iterable[Row], *, columns: Mapping[str, str]) -> None:
    """Write rows to a file. `columns`: each column's type, so that a Parquet file without rows has
    them too.

    Types are text, number, ints (a list), messages (dictionaries of role and content) and parts
    (dictionaries of text and weight). A column of a Parquet file has one type, so a completion in
    parts stands there in the column `parts`.
    """
    check_name(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.tmp")
    if path.suffix == ".parquet":
        _write_parquet(aside, rows, columns)
    else:
        with aside.open("w", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
            file.flush()
            os.fsync(file.fileno())
    os.replace(aside, path)


def _write_parquet(path: Path, rows: Iterable[Row], columns: Mapping[str, str]) -> None:
    import pyarrow
    from pyarrow import parquet

    message = pyarrow.struct([("role", pyarrow.string()), ("content", pyarrow.string())])
    span = pyarrow.struct([("text", pyarrow.string()), ("weight", pyarrow.int32())])
    types = {
        "text": pyarrow.string(),
        "number": pyarrow.float64(),
        "ints": pyarrow.list_(pyarrow.int32()),
        "messages": pyarrow.list_(message),
        "parts": pyarrow.list_(span),
    }
    schema = pyarrow.schema([(name, types[kind]) for name, kind in columns.items()])
    parquet.write_table(
        pyarrow.Table.from_pylist(list(map(_split_parts, rows)), schema=schema), path
    )


def _split_parts(row: Row) -> Row:
    """Return a row whose completion is a text, or none beside its parts."""
    if not isinstance(row.get("completion"), list):
        return row
    return {**row, "completion": None, "parts": row["completion"]}
