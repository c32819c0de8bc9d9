"""Reads columns of a run's Parquet files, whatever version wrote them and however they ended."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rolecall.core.json_types import Record
from rolecall.watch.models import Missing

if TYPE_CHECKING:
    import pyarrow as pa

Condition = tuple[str, str, Any]  # column, "=" or "in", value


@dataclass(frozen=True, slots=True)
class Rows:
    """Some columns of a file as records, and what of them is missing."""

    records: list[Record]
    missing: list[Missing]


def read_rows(file: Path, columns: tuple[str, ...], where: list[Condition] | None = None) -> Rows:
    """Return the rows of a file with these columns; one that the file lacks is None in each row.

    A file that is not there or cannot be read has no rows, and `missing` says why.
    """
    table, missing = read_table(file, columns, where)
    if table is None:
        return Rows([], missing)
    records: list[Record] = table.to_pylist()
    absent = dict.fromkeys(name for name in columns if name not in table.column_names)
    return Rows([absent | record for record in records] if absent else records, missing)


def read_table(
    file: Path, columns: tuple[str, ...], where: list[Condition] | None = None
) -> tuple[pa.Table | None, list[Missing]]:
    """Return a table with those of the columns that the file has, and what is missing.

    Columns that conditions are on need not be among `columns`. None: the file cannot be read.
    """
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(file, pre_buffer=False) as opened:
            present = set(opened.schema_arrow.names)
            names = [name for name in columns if name in present]
            conditions = [one for one in where or () if one[0] in present]
            needed = [*dict.fromkeys([*names, *(name for name, _, _ in conditions)])]
            table = opened.read(columns=needed, use_threads=False)
        for name, relation, value in conditions:
            table = table.filter(_mask(table[name], relation, value))
        table = table.select(names)
    except FileNotFoundError:
        return None, [Missing(what=file.name, why="it is not there")]
    except (OSError, pa.ArrowException) as error:
        return None, [Missing(what=file.name, why=f"it cannot be read: {first_words(error)}")]
    absent = [name for name in columns if name not in present]
    if not absent:
        return table, []
    why = "an earlier version wrote this file"
    return table, [Missing(what=f"{', '.join(absent)} of {file.name}", why=why)]


def first_words(error: BaseException) -> str:
    """Return the first line of an error, without the paths that Arrow puts into it."""
    line = str(error).strip().split("\n")[0]
    return line[:200] or type(error).__name__


def _mask(column: pa.ChunkedArray, relation: str, value: Any) -> pa.ChunkedArray:
    import pyarrow as pa
    from pyarrow import compute

    if relation == "=":
        return compute.equal(column, pa.scalar(value, type=column.type))
    return compute.is_in(column, value_set=pa.array(value, type=column.type))
