"""Reads the numbered rows of a data file: JSON array, JSON Lines, CSV or parquet, also gzipped.

The kind is told by the first bytes, not by the name: public `.json` files often hold JSON Lines.
Only CSV is told by its name, and its values are texts.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

from rolecall.core.errors import first_line
from rolecall.core.json_types import JsonValue
from rolecall.core.tags import encodable

Row = dict[str, Any]

GZIP = b"\x1f\x8b"
PARQUET = b"PAR1"
HALF = re.compile(rb"\\u[dD][89a-fA-F]")  # of a surrogate pair, maybe without its other half
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def read_rows(path: Path) -> Iterator[tuple[int, Row]]:
    """Yield each row with its number from 1 (for JSON Lines and CSV that of its last line).

    Raises ValueError that names file and row for the first row that cannot be read, and for a
    file without rows.
    """
    with path.open("rb") as head:
        zipped = head.read(2) == GZIP
    is_empty = True
    with gzip.open(path) if zipped else path.open("rb") as stream:
        file = cast(BinaryIO, stream)
        try:
            start = file.read(4)
            file.seek(0)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(f"{path}:1: not a readable gzip file: {error}") from error
        if path.name.removesuffix(".gz").endswith(".csv"):
            rows = _csv(file, path)
        else:
            rows = _parquet(file, path) if start == PARQUET else _json(file, path)
        for row in rows:
            is_empty = False
            yield row
    if is_empty:
        raise ValueError(f"{path}:1: the file holds no rows")


def _parquet(file: BinaryIO, path: Path) -> Iterator[tuple[int, Row]]:
    import pyarrow
    from pyarrow import parquet

    number = 0
    try:
        for batch in parquet.ParquetFile(file).iter_batches():
            for row in batch.to_pylist():
                number += 1
                yield number, row
    except (pyarrow.ArrowException, OSError) as error:
        raise ValueError(
            f"{path}:{number + 1}: not a readable parquet file: {first_line(error)}"
        ) from error


def _csv(file: BinaryIO, path: Path) -> Iterator[tuple[int, Row]]:
    """Read the rows below a line of column names; a question may run over several lines."""
    reader = csv.reader(io.TextIOWrapper(file, encoding="utf-8-sig", newline=""), strict=True)
    try:
        columns = next(reader, [])
        for values in reader:
            if not values:
                continue
            if len(values) != len(columns):
                raise ValueError(
                    f"{path}:{reader.line_num}: {len(values)} values under {len(columns)} columns"
                )
            yield reader.line_num, dict(zip(columns, values, strict=True))
    except (csv.Error, UnicodeDecodeError, OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path}:{reader.line_num + 1}: not readable as CSV: {error}") from error


def _json(file: BinaryIO, path: Path) -> Iterator[tuple[int, Row]]:
    number, first = 0, True
    try:
        for number, line in enumerate(file, start=1):
            text = line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line
            if not text.strip():
                continue
            if first and text.lstrip().startswith(b"["):
                yield from _array(b"\n" * (number - 1) + text + file.read(), path)
                return
            first = False
            yield number, _row(_parse(text.strip(), path, line=number), path, number=number)
    except (OSError, EOFError, zlib.error) as error:  # a cut gzip file
        raise ValueError(f"{path}:{number + 1}: {error}") from error


def _array(text: bytes, path: Path) -> Iterator[tuple[int, Row]]:
    for number, row in enumerate(_parse(text, path, line=1), start=1):
        yield number, _row(row, path, number=number)


def _parse(text: bytes, path: Path, *, line: int) -> Any:
    try:
        value = json.loads(text)
        return _repaired(value) if HALF.search(text) else value
    except json.JSONDecodeError as error:
        at = line + error.lineno - 1
        raise ValueError(f"{path}:{at}: not JSON: {error.msg}, column {error.colno}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}:{line}: not UTF-8: {error.reason}") from error


def _repaired(value: JsonValue) -> JsonValue:
    """Text that UTF-8 cannot hold would end the run where it is written down."""
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, list):
        return [_repaired(each) for each in value]
    if isinstance(value, dict):
        return {encodable(key): _repaired(each) for key, each in value.items()}
    return value


def _row(row: object, path: Path, *, number: int) -> Row:
    if not isinstance(row, dict):
        raise ValueError(f"{path}:{number}: a row must be an object, got {type(row).__name__}")
    return row
