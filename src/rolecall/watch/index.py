"""Holds a few narrow columns of all turns of a run in memory, the newest step first.

A run may have a million turns, so texts become numbers: a column of names holds places in a list.
Texts and tokens stay in the files. What was read is kept in the user's cache for the next server.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from rolecall.storage.numbered import name_numbered
from rolecall.watch.index_cache import KeptIndex, load_index, save_index
from rolecall.watch.stamps import Stamp, stamp_steps
from rolecall.watch.tables import read_table

if TYPE_CHECKING:
    import pyarrow as pa

NAMED = {"agent": np.uint16, "task": np.int32, "source": np.uint16, "finish": np.uint16}
FLAGS = ("valid", "trained", "chosen")
NUMBERS = ("score", "advantage")
READ = (*NAMED, *FLAGS, *NUMBERS, "error")
KINDS: dict[str, Any] = (
    {"row": np.int32, "error": np.uint16}
    | NAMED
    | dict.fromkeys(FLAGS, np.bool_)
    | dict.fromkeys(NUMBERS, np.float32)
)
UNSAVED = 0.1  # share of the steps that may be read again by the next server
LEAST_ROWS = 20_000  # that are worth a file in the cache: fewer are read again in a moment
Array = NDArray[Any]


class Names:
    """Numbers the texts of a column in the order in which they are met; "" has the number 0."""

    def __init__(self, texts: list[str] | None = None) -> None:
        self.texts = texts or [""]
        self._numbers = {text: number for number, text in enumerate(self.texts)}
        self._lock = threading.Lock()

    def number(self, text: str) -> int:
        with self._lock:
            number = self._numbers.setdefault(text, len(self.texts))
            if number == len(self.texts):
                self.texts.append(text)
            return number


@dataclass(frozen=True, slots=True)
class Columns:
    """Rows of one or of more steps, the newest step first and its turns in their order."""

    step: Array
    values: Mapping[str, Array]  # columns by name, `row` being the place in the step's file
    names: Mapping[str, Names]

    def __len__(self) -> int:
        return len(self.step)


@dataclass(slots=True)
class Block:
    """The columns of one step, and the file that they were read from."""

    stamp: Stamp
    values: dict[str, Array]
    missing: str = ""  # why it has no rows

    def __len__(self) -> int:
        return len(self.values["row"])


@dataclass(slots=True)
class Joined:
    """All blocks in one, with where each step begins."""

    steps: list[int]  # falling
    starts: list[int]  # rows at which they begin, and the end
    step: Array
    values: dict[str, Array] = field(default_factory=dict)


class TurnIndex:
    """The columns of a run, read in the background and again where a file has changed."""

    def __init__(
        self, episodes: Path, *, cache: Path | None = None, least_rows: int = LEAST_ROWS
    ) -> None:
        """Read the files of a folder; `cache` is a file that keeps what was read of many turns."""
        self.episodes, self.cache, self.least_rows = episodes, cache, least_rows
        self.names = {name: Names() for name in (*NAMED, "error")}
        self.blocks: dict[int, Block] = {}
        self._joined: Joined | None = None
        self._lock = threading.RLock()
        self._reader: threading.Thread | None = None
        self._being_read: dict[int, threading.Event] = {}
        self._unsaved = 0  # steps
        self._is_loaded = cache is None

    def read_in_background(self) -> threading.Thread:
        """Read what is not read yet in a thread, which is returned."""
        with self._lock:
            if self._reader is None or not self._reader.is_alive():
                self._reader = threading.Thread(target=self.read_all, daemon=True)
                self._reader.start()
            return self._reader

    def read_all(self) -> None:
        """Read all files that are new or have changed, but for those that others read just now."""
        stamps = stamp_steps(self.episodes)
        with self._lock:
            self._begin(stamps)
        for step, stamp in stamps.items():
            self._add(step, stamp, waits=False)
        self._save()

    def iterate_columns(self) -> Iterator[Columns]:
        """Yield the rows of all steps, newest first: those that are read at once, others singly."""
        stamps = stamp_steps(self.episodes)
        with self._lock:
            self._begin(stamps)
            joined = self._join()
        indexed = set(joined.steps)
        pending: list[int] = []
        for step, stamp in stamps.items():
            if step in indexed:
                pending.append(step)
                continue
            if pending:
                yield self._slice(joined, pending)
                pending = []
            if (block := self._add(step, stamp)) is not None:
                yield Columns(np.full(len(block), step, np.int32), block.values, self.names)
        if pending:
            yield self._slice(joined, pending)

    def _add(self, step: int, stamp: Stamp, *, waits: bool = True) -> Block | None:
        """Return the block of a step, which one thread reads while others wait for it or go on."""
        while True:
            with self._lock:
                block = self.blocks.get(step)
                if block is not None and block.stamp == stamp:
                    return block
                reading = self._being_read.get(step)
                if reading is None:
                    own = self._being_read[step] = threading.Event()
                    break
            if not waits:
                return None
            reading.wait()
        try:
            block = read_block(self.episodes / name_numbered(step, "parquet"), stamp, self.names)
            with self._lock:
                self.blocks[step], self._joined = block, None
                self._unsaved += 1
            return block
        finally:
            with self._lock:
                del self._being_read[step]
            own.set()

    def _begin(self, stamps: dict[int, Stamp]) -> None:
        """Load what the cache keeps, once, and forget what is no longer so."""
        if not self._is_loaded:
            self._is_loaded = True
            self._load()
        self._forget_changed(stamps)

    def _load(self) -> None:
        kept = None if self.cache is None else load_index(self.cache, KINDS)
        if kept is None or self.blocks:
            return
        self.names = {name: Names(kept.names.get(name)) for name in self.names}
        ends = np.cumsum(kept.lengths).tolist() if kept.lengths else []
        for number, step in enumerate(kept.steps):
            rows = slice(ends[number] - kept.lengths[number], ends[number])
            values = {name: column[rows] for name, column in kept.values.items()}
            self.blocks[step] = Block(kept.stamps[number], values, kept.missing[number])

    def _save(self) -> None:
        """Keep what was read in the cache, unless nearly all of it is there."""
        with self._lock:
            if self.cache is None or self._unsaved <= UNSAVED * len(self.blocks):
                return
            joined = self._join()
            if len(joined.step) < self.least_rows:
                return
            self._unsaved = 0
            blocks = [self.blocks[step] for step in joined.steps]
            kept = KeptIndex(
                steps=list(joined.steps),
                stamps=[block.stamp for block in blocks],
                lengths=[len(block) for block in blocks],
                missing=[block.missing for block in blocks],
                names={name: list(names.texts) for name, names in self.names.items()},
                values=joined.values,
            )
        save_index(self.cache, kept)

    def _forget_changed(self, stamps: dict[int, Stamp]) -> None:
        """Drop the steps whose files are gone or are others: a resumed run does them again."""
        changed = [step for step, block in self.blocks.items() if stamps.get(step) != block.stamp]
        for step in changed:
            del self.blocks[step]
            self._joined = None

    def _join(self) -> Joined:
        if self._joined is None:
            steps = sorted(self.blocks, reverse=True)
            blocks = [self.blocks[step] for step in steps]
            lengths = [len(block) for block in blocks]
            values = {
                name: np.concatenate([block.values[name] for block in blocks])
                for name in (blocks[0].values if blocks else ())
            }
            starts = [0, *np.cumsum(lengths).tolist()] if blocks else [0]
            repeated = np.repeat(np.array(steps, np.int32), lengths)
            self._joined = Joined(steps, starts, repeated, values)
            for step, first, end in zip(steps, starts[:-1], starts[1:], strict=True):
                views = {name: column[first:end] for name, column in values.items()}
                self.blocks[step].values = views  # so that nothing is held twice
        return self._joined

    def _slice(self, joined: Joined, steps: list[int]) -> Columns:
        """Return consecutive steps of the joined columns."""
        negative = [-step for step in joined.steps]
        first, last = (bisect_left(negative, -step) for step in (steps[0], steps[-1]))
        begin, end = joined.starts[first], joined.starts[last + 1]
        values = {name: column[begin:end] for name, column in joined.values.items()}
        return Columns(joined.step[begin:end], values, self.names)


def read_block(path: Path, stamp: Stamp, names: Mapping[str, Names]) -> Block:
    """Return the columns of one step; no rows, with the reason, where its file is unreadable."""
    table, missing = read_table(path, READ)
    if table is None:
        return Block(stamp, _empty(), missing[0].why)
    rows = table.num_rows
    values: dict[str, Array] = {"row": np.arange(rows, dtype=np.int32)}
    present = set(table.column_names)
    for name, kind in NAMED.items():
        values[name] = _codes(table, name, names[name]).astype(kind)
    for name in FLAGS:
        values[name] = _flags(table[name]) if name in present else np.ones(rows, bool)
    for name in NUMBERS:
        column = table[name].to_numpy() if name in present else np.full(rows, np.nan)
        values[name] = np.asarray(column, dtype=np.float32)
    values["error"] = _error_codes(table, names["error"]).astype(np.uint16)
    return Block(stamp, values)


def _empty() -> dict[str, Array]:
    return {name: np.zeros(0, kind) for name, kind in KINDS.items()}


def _codes(table: pa.Table, name: str, names: Names) -> Array:
    """Return the number of each row's text in a column."""
    if name not in table.column_names:
        return np.zeros(table.num_rows, np.int32)
    encoded = table[name].combine_chunks().dictionary_encode()
    if hasattr(encoded, "chunks"):
        encoded = encoded.chunk(0)
    numbers = [names.number(text or "") for text in encoded.dictionary.to_pylist()]
    places = encoded.indices.fill_null(len(numbers)).to_numpy(zero_copy_only=False)
    return np.array([*numbers, 0], np.int32)[places]


def _error_codes(table: pa.Table, names: Names) -> Array:
    """Return the number of each row's kind of error, such as `TimeoutError`; 0 for none."""
    if "error" not in table.column_names or table["error"].null_count == table.num_rows:
        return np.zeros(table.num_rows, np.int32)
    kinds = [
        0 if text is None else names.number(text.partition(":")[0] or "error")
        for text in table["error"].to_pylist()
    ]
    return np.array(kinds, np.int32)


def _flags(column: pa.ChunkedArray) -> Array:
    flags: Array = column.combine_chunks().fill_null(True).to_numpy(zero_copy_only=False)
    return flags
