"""Scores the bytes of a submission against the truth; nothing but CSV is read."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from rolecall.grading.tabular import Invalid, canonical, evaluate

MOST_BYTES = 64 << 20
Table = dict[str, list[str]]  # column -> the cells of its rows, as text


@dataclass(frozen=True, slots=True)
class Grading:
    """The columns of a table that are compared, and their metric."""

    metric: str
    targets: list[str]  # columns
    id_column: str


def grade(submission: bytes | None, truth: Table, grading: Grading) -> float:
    """Return the score of predictions joined to the truth by their ids.

    Raises Invalid as `align` does, or with a metric's own `kind`; ValueError if the truth itself is
    at fault.
    """
    return score_predictions(align(submission, truth, grading), truth, grading)


def score_predictions(predictions: Table, truth: Table, grading: Grading) -> float:
    """Return the score of columns that `align` returned. Raises as `grade` does."""
    return evaluate(grading.metric, {name: truth[name] for name in grading.targets}, predictions)


def align(submission: bytes | None, truth: Table, grading: Grading) -> Table:
    """Return the predicted columns, whose rows stand in the order of the truth's.

    Raises Invalid, whose `kind` is one of missing, too_large, unreadable, columns, duplicate_ids,
    missing_ids, extra_ids, empty.
    """
    if submission is None:
        raise Invalid("missing", "there is no submission")
    table = read_table(submission)
    columns = {grading.id_column, *grading.targets}
    if table.keys() != columns:
        raise Invalid("columns", f"the columns must be {sorted(columns)}, not {sorted(table)}")
    ids = [canonical(cell) for cell in truth[grading.id_column]]
    rows = _match_rows(table[grading.id_column], ids)
    predictions = {name: [table[name][row] for row in rows] for name in grading.targets}
    empty = [
        name for name, column in predictions.items() if not all(cell.strip() for cell in column)
    ]
    if empty:
        raise Invalid("empty", f"column {empty[0]!r} has rows without a value")
    return predictions


def _match_rows(given: Sequence[str], ids: Sequence[str]) -> list[int]:
    """Return, for each true id, the row of the submission that has it."""
    cells = [canonical(cell) for cell in given]
    twice = [name for name, count in Counter(cells).items() if count > 1]
    if twice:
        raise Invalid("duplicate_ids", f"{len(twice)} ids stand there twice, such as {twice[0]!r}")
    row_of = {name: row for row, name in enumerate(cells)}
    missing = [name for name in ids if name not in row_of]
    if missing:
        raise Invalid("missing_ids", f"{len(missing)} ids are missing, such as {missing[0]!r}")
    if len(cells) > len(ids):
        raise Invalid("extra_ids", f"there are {len(cells) - len(ids)} ids too many")
    return [row_of[name] for name in ids]


def read_table(content: bytes) -> Table:
    """Read a CSV file with a header. Raises Invalid for anything else."""
    if len(content) > MOST_BYTES:
        raise Invalid("too_large", f"the file has more than {MOST_BYTES} bytes")
    try:
        text = content.decode("utf-8-sig")
        header, *rows = [row for row in csv.reader(io.StringIO(text, newline="")) if row]
    except (UnicodeDecodeError, csv.Error, ValueError) as error:
        raise Invalid("unreadable", f"no CSV file with a header: {error}") from error
    names = [name.strip() for name in header]
    if len(set(names)) < len(names):
        raise Invalid("columns", f"a column's name stands there twice: {names}")
    if any(len(row) != len(names) for row in rows):
        raise Invalid("unreadable", f"a row has not {len(names)} cells, as the header has")
    return {name: [row[at] for row in rows] for at, name in enumerate(names)}


def write_table(table: Table) -> bytes:
    """Return the CSV file of a table."""
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(table)
    writer.writerows(zip(*table.values(), strict=True))
    return out.getvalue().encode()
