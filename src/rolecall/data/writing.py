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

    Types are text, number, ints (a list) and messages (dictionaries of role and content).
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
    types = {
        "text": pyarrow.string(),
        "number": pyarrow.float64(),
        "ints": pyarrow.list_(pyarrow.int32()),
        "messages": pyarrow.list_(message),
    }
    schema = pyarrow.schema([(name, types[kind]) for name, kind in columns.items()])
    parquet.write_table(pyarrow.Table.from_pylist(list(rows), schema=schema), path)
