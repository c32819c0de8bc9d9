"""Finds turns of a run, the newest step first, and streams them as they are met."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from rolecall.core.json_types import Record
from rolecall.watch.clean_json import finite
from rolecall.watch.index import Array, Columns, TurnIndex
from rolecall.watch.models import FindLine, Hit
from rolecall.watch.query import Query, QueryError, read_query
from rolecall.watch.runs import WatchedRun
from rolecall.watch.tables import read_table

if TYPE_CHECKING:
    import pyarrow as pa

SHOWN = ("episode", "turn", "text")
FACETS = ("agent", "source", "finish", "task", "error")
MOST_VALUES = 20  # of a facet
SAY_S = 0.2  # after which a line says how far the search is
AHEAD = 4  # steps whose texts are read before they are needed
# Of all searches: a search whose reader has left is ended by the garbage collector, in any thread
# and with any lock held, so it must not wait for threads of its own to end.
READERS = ThreadPoolExecutor(2, thread_name_prefix="rolecall-find")
BEFORE, AFTER = 60, 160  # characters of a snippet around its first match


@dataclass(slots=True)
class Search:
    """Holds what one search has come to so far."""

    query: Query
    limit: int
    of_steps: int
    hits: int = 0
    matches: int = 0
    steps: int = 0
    facets: dict[str, dict[str, int]] = field(default_factory=dict)

    def count(self, columns: Columns, rows: Array) -> None:
        """Add rows that match to the numbers by column."""
        self.matches += len(rows)
        for name in FACETS:
            numbers = np.bincount(columns.values[name][rows])
            texts = columns.names[name].texts
            self._add(
                name, {texts[n]: int(numbers[n]) for n in np.flatnonzero(numbers) if texts[n]}
            )
        is_valid = int(columns.values["valid"][rows].sum())
        self._add("valid", {"yes": is_valid, "no": len(rows) - is_valid})

    def _add(self, name: str, counts: dict[str, int]) -> None:
        facet = self.facets.setdefault(name, {})
        for text, number in counts.items():
            if number:
                facet[text] = facet.get(text, 0) + number

    def line(self, *, hit: Hit | None = None, is_end: bool = False) -> FindLine:
        facets = {
            name: dict(sorted(values.items(), key=lambda pair: -pair[1])[:MOST_VALUES])
            for name, values in (self.facets.items() if is_end else ())
        }
        return FindLine(
            hit=hit,
            searched_steps=self.steps,
            of_steps=self.of_steps,
            matches=self.matches,
            is_end=is_end,
            facets=facets,
        )


def find_turns(run: WatchedRun, index: TurnIndex, text: str, *, limit: int) -> Iterator[FindLine]:
    """Yield the first `limit` turns that match as they are met, then a line with all numbers.

    Lines without a turn say how far the search is, so that one whose reader has left ends soon.
    """
    try:
        query = read_query(text)
    except QueryError as error:
        yield FindLine(is_end=True, error=str(error))
        return
    search = Search(query, limit, len(run.list_steps()))
    yield search.line()
    said_at = time.monotonic()
    for columns in index.iterate_columns():
        for hit in _search_columns(run, search, columns):
            if hit is not None or time.monotonic() - said_at > SAY_S:
                said_at = time.monotonic()
                yield search.line(hit=hit)
    search.steps = search.of_steps
    yield search.line(is_end=True)


def _search_columns(run: WatchedRun, search: Search, columns: Columns) -> Iterator[Hit | None]:
    """Yield the hits in some steps; None after a step without one."""
    rows = np.flatnonzero(search.query.mask(columns))
    if not search.query.has_words:
        search.count(columns, rows)
        rows = rows[: search.limit - search.hits]
    before = search.steps
    numbers = np.flatnonzero(np.diff(columns.step[rows])) + 1
    waiting: deque[Future[tuple[int, Array, pa.Table | None]]] = deque()
    for group in np.split(rows, numbers) if len(rows) else ():
        waiting.append(READERS.submit(_read_step, run, search.query, columns, group))
        if len(waiting) > AHEAD:
            yield from _take_step(search, columns, *waiting.popleft().result())
    while waiting:
        yield from _take_step(search, columns, *waiting.popleft().result())
    search.steps = before + _count_steps(columns.step)
    yield None


def _count_steps(step: Array) -> int:
    """Return how many steps a column of steps holds, each in one stretch."""
    return int(np.count_nonzero(np.diff(step))) + bool(len(step))


def _read_step(
    run: WatchedRun, query: Query, columns: Columns, rows: Array
) -> tuple[int, Array, pa.Table | None]:
    """Return a step with those of the rows whose texts match, and the table of these."""
    step = int(columns.step[rows[0]])
    names = SHOWN if not query.has_words else ("text",)
    file = run.episode_file(step)
    table, _ = read_table(file, names)
    places = columns.values["row"][rows]
    if table is None or "text" not in table.column_names or not len(table):
        return step, rows[:0], None
    if not query.has_words:
        return step, rows, table.take(places[places < len(table)])
    matching = _match_words(table["text"].take(places), query)
    rows = rows[matching]
    if not len(rows):
        return step, rows, None
    table, _ = read_table(file, SHOWN)
    return step, rows, None if table is None else table.take(columns.values["row"][rows])


def _match_words(texts: pa.ChunkedArray, query: Query) -> Array:
    """Return which texts hold all words, in any case, and none of the excluded ones."""
    from pyarrow import compute

    matching = np.ones(len(texts), bool)
    for words, expected in ((query.words, True), (query.excluded, False)):
        for word in words:
            mask = compute.match_substring(texts, word, ignore_case=True).fill_null(False)
            matching &= mask.to_numpy() == expected
    return matching


def _take_step(
    search: Search, columns: Columns, step: int, rows: Array, table: pa.Table | None
) -> Iterator[Hit | None]:
    search.steps += 1
    if search.query.has_words:
        search.count(columns, rows)
    room = search.limit - search.hits
    if table is None or room <= 0:
        yield None
        return
    for row, record in zip(rows[:room], table.slice(0, room).to_pylist(), strict=False):
        search.hits += 1
        yield _hit(columns, step, int(row), record, search.query.words)


def _hit(columns: Columns, step: int, row: int, record: Record, words: Sequence[str]) -> Hit:
    values, names = columns.values, columns.names
    snippet, ranges = cut_snippet(record.get("text") or "", words)
    return Hit(
        step=step,
        episode=record.get("episode") or "",
        turn=record.get("turn") or "",
        agent=names["agent"].texts[values["agent"][row]],
        task=names["task"].texts[values["task"][row]],
        score=finite(float(values["score"][row])),
        advantage=finite(float(values["advantage"][row])),
        valid=bool(values["valid"][row]),
        finish=names["finish"].texts[values["finish"][row]],
        snippet=snippet,
        ranges=ranges,
    )


def cut_snippet(text: str, words: Sequence[str]) -> tuple[str, list[tuple[int, int]]]:
    """Return the text around the first word that is met, and where words stand in it."""
    pattern = re.compile("|".join(map(re.escape, words)), re.IGNORECASE) if words else None
    first = pattern.search(text) if pattern else None
    begin = max(0, (first.start() if first else 0) - BEFORE)
    snippet = text[begin : begin + BEFORE + AFTER]
    matches = pattern.finditer(snippet) if pattern else ()
    return snippet, [match.span() for match in matches]
