"""Reads what a finished or running run has written: config, summary, metrics and episodes."""

from __future__ import annotations

import json
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from rolecall.config.load import load
from rolecall.config.schema import Config
from rolecall.core.json_types import Record
from rolecall.core.optional import optional
from rolecall.storage.numbered import iterate_numbered
from rolecall.storage.run_folder import RunFolder

Frame = Literal["arrow", "pandas", "polars"]
FILES = {
    "train": ("episodes", "step"),
    "test": ("", "evaluation"),
    "validation": ("", "validation"),
}


class LoadedRun:
    """A run folder's contents. `load_run("runs/math").episodes(frame="pandas")`."""

    def __init__(self, path: str | Path) -> None:
        """Open a run; raises ConfigError if there is none."""
        self.folder = RunFolder.existing(Path(path))
        self.path = self.folder.path

    @cached_property
    def config(self) -> Config:
        return load(self.folder.config)

    @cached_property
    def summary(self) -> Record:
        """The content of summary.json; {} while the run is not finished."""
        file = self.folder.summary
        summary: Record = json.loads(file.read_text()) if file.is_file() else {}
        return summary

    def metrics(self, *, frame: Frame = "arrow") -> Any:
        """Return one row for each step and each evaluation; a column for each name, null where
        absent.
        """
        records = self.folder.read_metrics()
        names = dict.fromkeys(name for record in records for name in record)
        plain = [{name: _cell(record.get(name)) for name in names} for record in records]
        return _as(pa.Table.from_pylist(plain), frame)

    def episodes(
        self, *, split: Literal["train", "test", "validation"] = "train", frame: Frame = "arrow"
    ) -> Any:
        """Return one row for each turn, with what belongs to its episode, as docs/options.md lists.

        Raises ValueError where no episode of the split was written.
        """
        subfolder, kind = FILES[split]
        files = [file for _, file in iterate_numbered(self.path / subfolder, "parquet", kind=kind)]
        if not files:
            raise ValueError(f"{self.path} holds no episodes of the {split} split")
        return _as(pa.concat_tables([pq.read_table(file) for file in files]), frame)


def _cell(value: Any) -> Any:
    """Nested results of evaluations stay readable as JSON."""
    return json.dumps(value) if isinstance(value, dict | list) else value


def _as(table: pa.Table, frame: Frame) -> Any:
    if frame == "arrow":
        return table
    if frame == "pandas":
        optional("pandas", extra="data")
        return table.to_pandas()
    return optional("polars", extra="data").from_arrow(table)
