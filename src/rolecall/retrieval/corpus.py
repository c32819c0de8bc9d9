"""Converts rows of a corpus to passages and back.

A row has an `id` and either `contents` (the quoted title, a newline, the passage: Search-R1's
form) or `title` and `text`. Files are JSON Lines or anything else that `read_rows` reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path

from rolecall.data.files import Row, read_rows
from rolecall.retrieval.base import Passage

SAMPLE_BYTES = 1 << 20  # of each end of a corpus file


def read_corpus(path: Path) -> Iterator[Passage]:
    """Yield the passages of a file in its order, one in memory at a time.

    Raises ValueError naming file and line for a row that is no passage or has no id.
    """
    for number, row in read_rows(path):
        try:
            passage = read_passage(row)
            if not passage.id:
                raise ValueError(f"no `id`; columns: {', '.join(row)}")
        except ValueError as error:
            raise ValueError(f"{path}:{number}: {error}") from error
        yield passage


def read_passage(row: Row) -> Passage:
    r"""Read a passage from a row of a corpus.

    {"id": 7, "contents": "\"Ada\"\nAda wrote."} -> Passage("7", "Ada", "Ada wrote.")

    A `title` beside `contents` is the passage's; the contents may repeat it as their first line.

    Raises ValueError for a row without text.
    """
    name = "" if row.get("id") is None else str(row["id"])
    title, text, contents = row.get("title"), row.get("text"), row.get("contents")
    if isinstance(text, str):
        return Passage(name, title if isinstance(title, str) else "", text)
    if isinstance(contents, str) and isinstance(title, str) and title:
        inside = split_contents(contents, name=name)
        repeated = inside.title == title.strip('"')
        return Passage(name, title, inside.text if repeated else contents)
    if isinstance(contents, str):
        return split_contents(contents, name=name)
    raise ValueError(f"no `contents` and no `text`; columns: {', '.join(row)}")


def split_contents(contents: str, *, name: str = "") -> Passage:
    """Return the quoted title of the first line and the rest; a text of one line has no title."""
    first, newline, rest = contents.partition("\n")
    if not newline:
        return Passage(name, "", contents)
    quoted = len(first) > 1 and first[0] == first[-1] == '"'
    return Passage(name, first[1:-1] if quoted else first, rest)


def join_contents(passage: Passage) -> str:
    """Return the form that `parted` takes apart."""
    return f'"{passage.title}"\n{passage.text}'


def fingerprint(path: Path) -> str:
    """Return the fingerprint of a corpus file: its size and both of its ends, since whole ones
    hold many gigabytes.

    Raises ValueError if there is no such file.
    """
    if not path.is_file():
        raise ValueError(f"there is no corpus file {path}")
    size = path.stat().st_size
    digest = blake2b(str(size).encode(), digest_size=8)
    with path.open("rb") as file:
        digest.update(file.read(SAMPLE_BYTES))
        file.seek(max(0, size - SAMPLE_BYTES))
        digest.update(file.read(SAMPLE_BYTES))
    return digest.hexdigest()
