"""The numbers of all rows in flight, one array each: a decode step touches no row by itself.

Line i belongs to cache row i. Legend: B = lines in use, W = most ids that any line may have.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rolecall.engines.base import Completion
from rolecall.engines.rows import Row, draws_of
from rolecall.engines.sampling import draw

GROWTH = 64  # lines and positions are added in such steps


class Lines:
    """What rows have sampled and where they stand."""

    def __init__(self, *, vocabulary: int, device: torch.device) -> None:
        self.device, self.vocabulary = device, vocabulary
        self.rows: list[Row] = []
        self._lines = self._width = 0
        self._ends: dict[frozenset[int], int] = {}  # set of end ids -> its line in the table
        self._table = torch.zeros(0, vocabulary, dtype=torch.bool, device=device)
        self._columns: dict[str, Tensor] = {}
        self._grow(GROWTH, GROWTH)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, name: str) -> Tensor:
        """A column of the lines in use: [B] or [B, W]."""
        return self._columns[name][: len(self.rows)]

    def add(self, rows: list[Row]) -> None:
        """New lines, which have sampled nothing."""
        first, last = len(self.rows), len(self.rows) + len(rows)
        self._grow(last, max(row.limit for row in rows))
        self.rows += rows
        uniforms = np.zeros((len(rows), self._width))
        for line, row in enumerate(rows):
            uniforms[line, : row.limit] = draws_of(row)
        whole = slice(first, last)
        new = {
            "uniforms": torch.from_numpy(uniforms),
            "limit": torch.tensor([row.limit for row in rows]),
            "count": torch.zeros(len(rows), dtype=torch.long),
            "length": torch.tensor([len(row.request.prompt) for row in rows]),
            "ends": torch.tensor([self._ends_of(row) for row in rows]),
            "temperature": torch.tensor([row.request.sampling.temperature for row in rows]),
        }
        for name, values in new.items():
            self._columns[name][whole] = values.to(self.device, self._columns[name].dtype)

    def record(self, lines: slice, logits: Tensor, versions: Tensor) -> list[int]:
        """Draw an id for each of these lines [n] from logits [n, V]; the lines that ended by it."""
        rows, columns = self.rows[lines], {n: c[lines] for n, c in self._columns.items()}
        place = columns["count"][:, None]
        tokens, logprobs = draw(
            logits,
            columns["uniforms"].gather(1, place)[:, 0],
            columns["temperature"],
            [(i, r.request.sampling) for i, r in enumerate(rows) if r.request.sampling.filtered],
        )
        columns["tokens"].scatter_(1, place, tokens[:, None].to(torch.int32))
        columns["logprobs"].scatter_(1, place, logprobs[:, None])
        columns["versions"].scatter_(1, place, versions[:, None])
        columns["newest"][:] = tokens
        columns["count"] += 1
        columns["length"] += 1
        stopped = self._table[columns["ends"], tokens]
        over = stopped | (columns["count"] >= columns["limit"])
        columns["stopped"][:] = stopped
        first = lines.start or 0
        return [first + i for i in over.nonzero()[:, 0].tolist()]

    def sampled(self, line: int) -> Tensor:
        """The ids of a line so far."""
        return self._columns["tokens"][line, : int(self._columns["count"][line])]

    def completion(self, line: int) -> Completion:
        columns, count = self._columns, int(self._columns["count"][line])
        return Completion(
            tokens=columns["tokens"][line, :count].cpu().numpy().copy(),
            logprobs=columns["logprobs"][line, :count].cpu().numpy().copy(),
            versions=columns["versions"][line, :count].cpu().numpy().copy(),
            finish="stop" if bool(columns["stopped"][line]) else "length",
        )

    def stop(self, line: int) -> None:
        """A text, not an id, ended it."""
        self._columns["stopped"][line] = True

    def keep(self, order: list[int]) -> None:
        """Only these lines, in this order."""
        chosen = torch.tensor(order, dtype=torch.long, device=self.device)
        for column in self._columns.values():
            column[: len(order)] = column[chosen]
        self.rows = [self.rows[line] for line in order]

    def _ends_of(self, row: Row) -> int:
        if row.ends not in self._ends:
            line = torch.zeros(1, self.vocabulary, dtype=torch.bool, device=self.device)
            line[0, [end for end in row.ends if end < self.vocabulary]] = True
            self._table = torch.cat([self._table, line])
            self._ends[row.ends] = len(self._ends)
        return self._ends[row.ends]

    def _grow(self, lines: int, width: int) -> None:
        if lines <= self._lines and width <= self._width:
            return
        lines = max(self._lines, -(-lines // GROWTH) * GROWTH)
        width = max(self._width, -(-width // GROWTH) * GROWTH)
        kinds = {
            "newest": torch.long, "length": torch.long, "count": torch.long, "limit": torch.long,
            "ends": torch.long, "temperature": torch.float32, "stopped": torch.bool,
        }  # fmt: skip
        wide = {
            "uniforms": torch.float64, "tokens": torch.int32, "logprobs": torch.float32,
            "versions": torch.int32,
        }  # fmt: skip
        old, used = self._columns, len(self.rows)
        self._columns = {
            n: torch.zeros(lines, dtype=k, device=self.device) for n, k in kinds.items()
        }
        self._columns |= {
            n: torch.zeros(lines, width, dtype=k, device=self.device) for n, k in wide.items()
        }
        for name, column in old.items():
            if name in wide:
                self._columns[name][:used, : self._width] = column[:used]
            else:
                self._columns[name][:used] = column[:used]
        self._lines, self._width = lines, width
