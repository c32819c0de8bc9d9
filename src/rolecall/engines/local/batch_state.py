"""Holds the numbers of all rows in flight as one array each, so that a step loops over no rows.

Legend: B = lines in use, V = vocabulary, W = most tokens that any line may have, P = most pages.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rolecall.core.interfaces.engine import Completion, Sampling
from rolecall.core.types import Ids
from rolecall.engines.local.sampling import draw
from rolecall.engines.local.sequence import Sequence, draw_uniforms
from rolecall.models.cpu import kernels

NOTED = (
    "limit", "count", "length", "newest", "stopped", "tokens", "logprobs", "versions",
)  # fmt: skip
GROWTH = 64  # lines, tokens and pages are added in such steps


class BatchState:
    """Holds what rows have sampled and where they stand."""

    def __init__(self, policies: list[str], *, vocabulary: int, device: torch.device) -> None:
        self.policies, self.device, self.vocabulary = policies, device, vocabulary
        self.rows: list[Sequence] = []
        self.with_stops: list[int] = []  # lines that a text may end
        self._special: list[tuple[int, Sampling]] = []  # lines that are filtered or greedy
        self._ends: dict[frozenset[int], int] = {}  # set of end tokens -> its line in the table
        self._table = torch.zeros(0, vocabulary, dtype=torch.bool, device=device)
        kinds = {
            "newest": torch.long, "length": torch.long, "count": torch.long, "limit": torch.long,
            "ends": torch.long, "policy": torch.long, "temperature": torch.float32,
            "stopped": torch.bool,
        }  # fmt: skip
        wide = {
            "uniforms": torch.float64, "tokens": torch.int32, "logprobs": torch.float32,
            "versions": torch.int32, "pages": torch.int32,
        }  # fmt: skip
        self._columns = {n: torch.zeros(0, dtype=k, device=device) for n, k in kinds.items()}
        self._columns |= {n: torch.zeros(0, 0, dtype=k, device=device) for n, k in wide.items()}
        self._arrays: dict[str, np.ndarray] = {}  # the same memory on a CPU; else empty

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, name: str) -> Tensor:
        """Return a column of the lines in use: [B], [B, W] or, of the pages, [B, P]."""
        return self._columns[name][: len(self.rows)]

    def add(self, rows: list[Sequence]) -> None:
        """Add lines, which have sampled nothing yet."""
        first, last = len(self.rows), len(self.rows) + len(rows)
        self._grow(last, max(row.limit for row in rows), max(len(row.pages) for row in rows))
        uniforms = np.zeros((len(rows), self._columns["uniforms"].shape[1]))
        pages = np.zeros((len(rows), self._columns["pages"].shape[1]), dtype=np.int32)
        for line, row in enumerate(rows):
            uniforms[line, : row.limit] = draw_uniforms(row)
            pages[line, : len(row.pages)] = row.pages
        new = {
            "uniforms": uniforms,
            "pages": pages,
            "limit": np.array([row.limit for row in rows]),
            "count": np.zeros(len(rows), np.int64),
            "length": np.array([len(row.request.prompt) for row in rows]),
            "ends": np.array([self._end_ids(row) for row in rows]),
            "temperature": np.array([row.request.sampling.temperature for row in rows]),
            "policy": np.array([self.policies.index(row.request.policy) for row in rows]),
        }
        for name, values in new.items():
            self._columns[name][first:last] = torch.from_numpy(values)
        self._set(self.rows + rows)

    def record(self, logits: Tensor, versions: Tensor) -> tuple[list[int], list[int]]:
        """Sample a token for each line from logits [B, V], and say which lines ended by it.

        versions [policies]: int32, what each policy's weights are at. Both results come to the
        computer's memory in one copy: it is the one time that a step waits for the device.
        """
        index = self["count"][:, None]
        uniforms = self["uniforms"].gather(1, index)[:, 0]
        tokens, logprobs = draw(logits, uniforms, self["temperature"], self._special)
        if self.device.type == "cpu":
            return self._noted(tokens, logprobs, versions)
        columns = {name: column[: len(self.rows)] for name, column in self._columns.items()}
        columns["tokens"].scatter_(1, index, tokens[:, None].to(torch.int32))
        columns["logprobs"].scatter_(1, index, logprobs[:, None])
        columns["versions"].scatter_(1, index, versions[columns["policy"], None])
        columns["newest"][:] = tokens
        columns["count"] += 1
        columns["length"] += 1
        stopped = self._table[columns["ends"], tokens]
        columns["stopped"][:] = stopped
        over = stopped | (columns["count"] >= columns["limit"])
        newest, ended = torch.stack([tokens, over.long()]).tolist()
        return newest, [line for line, is_over in enumerate(ended) if is_over]

    def _noted(
        self, tokens: Tensor, logprobs: Tensor, versions: Tensor
    ) -> tuple[list[int], list[int]]:
        """Note the sampled tokens on a CPU; returns the tokens and the lines that ended.

        Each of a dozen tensor operations would cost more than this loop.
        """
        over, arrays = np.empty(len(tokens), np.bool_), self._arrays
        kernels.note(
            tokens.numpy(), logprobs.numpy(), versions.numpy(), arrays["policy"], arrays["ends"],
            self._table.numpy(), *(arrays[name] for name in NOTED), over,
        )  # fmt: skip
        return tokens.tolist(), over.nonzero()[0].tolist()

    def sampled_tokens(self, line: int) -> Ids:
        """Return the tokens of a line so far."""
        return self._copied("tokens", line)

    def completion(self, line: int) -> Completion:
        return Completion(
            tokens=self._copied("tokens", line),
            logprobs=self._copied("logprobs", line),
            versions=self._copied("versions", line),
            finish="stop" if bool(self._columns["stopped"][line]) else "length",
        )

    def _copied(self, name: str, line: int) -> np.ndarray:
        """Copy a column's numbers of a line so far."""
        if self._arrays:
            return self._arrays[name][line, : self._arrays["count"][line]].copy()
        return self._columns[name][line, : int(self._columns["count"][line])].cpu().numpy().copy()

    def stop(self, line: int) -> None:
        """Stop a line that a text, not a token, ended."""
        self._columns["stopped"][line] = True

    def drop(self, gone: list[int]) -> None:
        """Drop these lines; the last of the others take their places."""
        alive, without = len(self.rows) - len(gone), set(gone)
        holes = [line for line in gone if line < alive]
        movers = [line for line in range(alive, len(self.rows)) if line not in without]
        if holes:
            if self._arrays:
                for array in self._arrays.values():
                    array[holes] = array[movers]
            else:
                to, source = torch.tensor([holes, movers], device=self.device)
                for column in self._columns.values():
                    column[to] = column[source]
        rows = self.rows[:alive]
        for hole, mover in zip(holes, movers, strict=True):
            rows[hole] = self.rows[mover]
        self._set(rows)

    def _set(self, rows: list[Sequence]) -> None:
        self.rows = rows
        others = [(line, row.request.sampling) for line, row in enumerate(rows) if not row.is_plain]
        self.with_stops = [line for line, sampling in others if sampling.stop]
        self._special = [(line, sampling) for line, sampling in others if sampling.is_filtered]

    def _end_ids(self, row: Sequence) -> int:
        if row.ends not in self._ends:
            line = torch.zeros(1, self.vocabulary, dtype=torch.bool, device=self.device)
            line[0, [end for end in row.ends if end < self.vocabulary]] = True
            self._table = torch.cat([self._table, line])
            self._ends[row.ends] = len(self._ends)
        return self._ends[row.ends]

    def _grow(self, lines: int, ids: int, pages: int) -> None:
        """Make room for at least so many lines, of so many tokens and pages."""
        widths = {"pages": pages}
        for name, column in self._columns.items():
            shape = (lines, widths.get(name, ids))[: column.dim()]
            if any(want > have for want, have in zip(shape, column.shape, strict=True)):
                steps = (
                    max(-(-want // GROWTH) * GROWTH, have)
                    for want, have in zip(shape, column.shape, strict=True)
                )
                grown = column.new_zeros(tuple(steps))
                grown[tuple(map(slice, column.shape))] = column
                self._columns[name] = grown
                if self.device.type == "cpu":
                    self._arrays[name] = grown.numpy()
