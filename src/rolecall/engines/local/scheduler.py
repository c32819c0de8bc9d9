"""Decodes the rows of all policies of one model together, one more token for each per step.

Each step is one forward pass: the newest token of every row in flight, and the prompts that came.
Policies that train adapters of one base share its cache and its forward passes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from rolecall.core.interfaces.engine import Request
from rolecall.core.types import Ids
from rolecall.engines.local import llama_pass
from rolecall.engines.local.batch_state import BatchState
from rolecall.engines.local.cuda_graphs import Recorded, recordable
from rolecall.engines.local.page_allocator import Owner, PageAllocator, count_pages
from rolecall.engines.local.sequence import Sequence, make_sequences
from rolecall.engines.local.stops import StopTexts
from rolecall.models.attention.kv_cache import Paged
from rolecall.models.attention.layouts import Rows
from rolecall.models.cpu.kernels import PAGE
from rolecall.models.language_model import LanguageModel, mixed_logits
from rolecall.models.row_rope import long_tokens

PREFILL_TOKENS = 4096  # most tokens of prompts that one forward pass reads


@dataclass(frozen=True, slots=True)
class PrefillChunk:
    """Ids of a row to read, from position `start` of it on."""

    row: Sequence
    ids: Ids
    start: int


class Scheduler:
    """The rows of the policies of one model."""

    def __init__(
        self,
        policies: dict[str, LanguageModel],
        *,
        max_sequences: int,
        cache_bytes: int,
        expected_ids: int | None = None,
    ) -> None:
        self.policies = policies
        self.model = next(iter(policies.values()))  # all of them have its sizes and its tokenizer
        self.versions = dict.fromkeys(policies, 0)
        self.stale: set[str] = set()  # policies published since their rows were last read
        self.waiting: list[Sequence] = []  # the first may be read in part
        self.lines = BatchState(
            list(policies), vocabulary=self.model.vocabulary, device=self.model.device
        )
        self.llama = llama_pass.plain(self.model, alone=len(policies) == 1)
        like = (
            next(self.model.model.parameters()).detach() if self.llama is None else self.llama.like
        )
        self.allocator = PageAllocator(
            self.model, cache_bytes=cache_bytes, like=like, max_rows=max_sequences,
            expected_ids=expected_ids,
        )  # fmt: skip
        self.records = recordable(self.model)
        self._recorded: Recorded | None = None
        self._versions: Tensor | None = None  # [policies] on the device, as `lines` has them
        self._stops: dict[tuple[str, ...], StopTexts] = {}
        self.max_sequences = max_sequences
        self._sorted, self._cancelled = True, False
        self.num_read = self.num_shared = 0  # prompt tokens computed, and found in the cache

    @property
    def active(self) -> list[Sequence]:
        return self.lines.rows

    def add(self, request: Request) -> list[Sequence]:
        """Let a request wait for its turn. Raises ContextFullError if there is no room for it."""
        limits = {"the model's context": self.model.max_length, "the cache": self.allocator.max_ids}
        limit = self.model.capabilities.rope_limit
        if limit is not None and len(request.prompt) < limit:
            # What it has read would be rotated by other factors than what comes later.
            limits["the context of the model's short positions"] = limit
        rows = make_sequences(request, limits=limits, ends=self.model.end_ids)
        self.waiting += rows
        self._sorted = False
        return rows

    def cancel(self, row: Sequence) -> None:
        """Cancel a row; its line and its pages are free from the next step on."""
        row.done.cancel()
        self._cancelled = True

    def _drop_cancelled(self) -> None:
        for row in self.waiting:
            if row.done.done():
                self.allocator.release(row.pages)
        self.waiting = [row for row in self.waiting if not row.done.done()]
        self._let_go([line for line, row in enumerate(self.active) if row.done.done()])
        self._cancelled = False

    def publish(self, policy: str, version: int) -> None:
        """Follow a policy's new weights: its rows go on with what the new weights would see."""
        self.versions[policy] = version
        self._versions = None
        self.stale.add(policy)
        if self.llama is not None and (self.model.adapter is None or self.llama.merged):
            self.llama.published = True  # otherwise the adapter is read where it is

    def step(self) -> None:
        """Give every row one more token, read what has come and fits, let go what ended."""
        if self._cancelled:
            self._drop_cancelled()
        if self.stale:
            self._refresh()
        chunks = self._admit()
        if not self.active and not chunks:
            return
        decoding = len(self.active)
        whole = [p.row for p in chunks if p.row.num_read == len(p.row.request.prompt)]
        if whole:  # they waited until now: a failure of the pass must find them
            self.lines.add(whole)
            self.waiting = self.waiting[len(whole) :]
        logits = self._forward(chunks, decoding=decoding, keep=len(self.active))
        if self.active:
            self._record(logits)

    def fail(self, error: Exception) -> None:
        for row in (*self.waiting, *self.active):
            if not row.done.done():
                row.done.set_exception(error)
        self.waiting = []
        self.lines.drop(list(range(len(self.active))))
        self.clear(free=True)

    def clear(self, *, free: bool) -> None:
        """Let nothing be found that was read; only while no row is in flight.

        `free`: give the cache back, and with it the recorded steps, which read it where it lies.
        """
        self.allocator.clear(free=free)
        if free and self._recorded is not None:
            self.records = not self._recorded.unfit
            self._recorded = None

    # --- reading ---

    def read(self, policy: str, ids: Tensor, *, keep: Tensor) -> Tensor:
        """Logits [keep, V] of one row of ids [N], by the pass that samples, without the cache."""
        model, counts = self.policies[policy], torch.tensor([len(ids)])
        if self.llama is None:
            layout = Rows([len(ids)], device=ids.device)
            return model.logits(ids, layout.position, layout=layout, keep=keep)
        mixture = self.llama.mixture([model], counts)
        return self.llama.logits(ids, self.llama.rows(counts), keep=keep, mixture=mixture)

    def _admit(self) -> list[PrefillChunk]:
        """Return what this step reads of the waiting rows, in order.

        Only the last piece may end early.
        """
        if not self._sorted:
            self.waiting.sort(key=_order)
            self._sorted = True
        chunks: list[PrefillChunk] = []
        room = PREFILL_TOKENS
        for row in self.waiting[: self.max_sequences - len(self.active)]:
            prompt, owner = row.request.prompt, self._owner(row)
            if not row.pages:
                allocated = self.allocator.allocate(owner, prompt, room=len(prompt) + row.limit)
                if allocated is None:
                    break
                row.pages, row.num_read = allocated
                self.num_shared += row.num_read
            start = row.num_read
            row.num_read = min(len(prompt), start + room)
            chunks.append(PrefillChunk(row, prompt[start : row.num_read], start))
            # A row that follows may begin alike: it finds these pages, which the pass will fill.
            self.allocator.register(owner, prompt[: row.num_read], row.pages)
            room -= row.num_read - start
            if not room:
                break
        return chunks

    def _owner(self, row: Sequence) -> Owner:
        policy = row.request.policy
        return policy, self.versions[policy], self._is_long(row)

    def _is_long(self, row: Sequence) -> bool:
        """Return whether a row becomes longer than the model's short positions allow."""
        limit = self.model.capabilities.rope_limit
        return limit is not None and len(row.request.prompt) >= limit

    def _forward(self, chunks: list[PrefillChunk], *, decoding: int, keep: int) -> Tensor:
        """Compute the newest tokens of the first `decoding` lines, then the pieces.

        -> logits [keep, V] after the last token of each of the first `keep` of all these.
        """
        if self.records and decoding:
            return self._replayed(chunks, decoding=decoding, keep=keep)
        lines, device = self.lines, self.model.device
        if not chunks:
            layout = Paged(lines["pages"], lines["length"] - 1, cache=self.allocator.cache)
            return self._logits(self.active, lines["newest"], layout, keep=layout.row)
        starts = torch.tensor([chunk.start for chunk in chunks], dtype=torch.long, device=device)
        counts = torch.tensor([1] * decoding + [len(chunk.ids) for chunk in chunks], device=device)
        new = torch.from_numpy(np.concatenate([np.zeros(0, np.int32), *(p.ids for p in chunks)]))
        self.num_read += len(new)
        layout = Paged(
            self._table(chunks, decoding=decoding),
            torch.cat([lines["length"][:decoding] - 1, starts]),
            counts,
            cache=self.allocator.cache,
        )
        tokens = torch.cat([lines["newest"][:decoding], new.long().to(device)])
        rows = [*self.active[:decoding], *(chunk.row for chunk in chunks)]
        return self._logits(rows, tokens, layout, keep=counts.cumsum(0)[:keep] - 1)

    def _replayed(self, chunks: list[PrefillChunk], *, decoding: int, keep: int) -> Tensor:
        """Compute the lines with a recorded step, and the pieces in a pass of their own.

        In one pass with prompts the lines would leave the record, and the pages of all of them
        would be gathered in every layer.
        """
        read = self._forward(chunks, decoding=0, keep=keep - decoding) if chunks else None
        newest, starts, pages, policy = (
            self.lines[name][:decoding] for name in ("newest", "length", "pages", "policy")
        )
        logits = self._replays().logits(newest, starts - 1, pages, policy=policy)
        return logits if read is None else torch.cat([logits, read])

    def _logits(
        self, rows: list[Sequence], tokens: Tensor, layout: Paged, *, keep: Tensor
    ) -> Tensor:
        policies = [self.policies[row.request.policy] for row in rows]
        long = None
        if self.model.capabilities.rope_limit is not None:
            long = torch.tensor([self._is_long(row) for row in rows], device=tokens.device)
            long = long[layout.row]
        with long_tokens(long):
            if self.llama is not None:
                mixture = self.llama.mixture(policies, layout.counts)
                return self.llama.logits(tokens, layout, keep=keep, mixture=mixture)
            return mixed_logits(
                policies, tokens, layout.position, counts=layout.counts, layout=layout, keep=keep
            )

    def _replays(self) -> Recorded:
        if self._recorded is None:
            longest = count_pages(min(self.model.max_length, self.allocator.max_ids))
            models = list(self.policies.values())  # in the order of the lines' policies
            self._recorded = Recorded(models, self.allocator.cache, width=longest)
        return self._recorded

    def _table(self, chunks: list[PrefillChunk], *, decoding: int) -> Tensor:
        """Return the pages of these lines and chunks: [rows, P]."""
        table = self.lines["pages"][:decoding]
        width = max(table.shape[1], *(len(chunk.row.pages) for chunk in chunks))
        new = np.zeros((len(chunks), width), dtype=np.int32)
        for line, chunk in enumerate(chunks):
            new[line, : len(chunk.row.pages)] = chunk.row.pages
        return torch.cat([pad(table, (0, width - table.shape[1])), torch.from_numpy(new).to(table)])

    def _refresh(self) -> None:
        """Read the rows of published policies again: keys and values of the new weights."""
        self.allocator.unregister_all(self.stale)
        for row in self.waiting:  # the first may be read in part
            if row.request.policy in self.stale:
                self.allocator.release(row.pages)
                row.pages, row.num_read = [], 0
        chunks: list[PrefillChunk] = []
        room = PREFILL_TOKENS
        for line, row in enumerate(self.active):
            if row.request.policy not in self.stale:
                continue
            ids, owner = self._ids(line), self._owner(row)
            cached = self.allocator.lookup(owner, ids)  # by the rows before it, now
            same = [mine == page for mine, page in zip(row.pages, cached, strict=False)]
            start = PAGE * (same.index(False) if False in same else len(same))
            while start < len(ids):
                end = min(len(ids), start + room)
                chunks.append(PrefillChunk(row, ids[start:end], start))
                self.allocator.register(owner, ids[:end], row.pages)
                room, start = room - (end - start), end
                if not room:
                    self._forward(chunks, decoding=0, keep=0)
                    chunks, room = [], PREFILL_TOKENS
        if chunks:
            self._forward(chunks, decoding=0, keep=0)
        self.stale = set()

    # --- sampling ---

    def _record(self, logits: Tensor) -> None:
        if self._versions is None:
            versions = [self.versions[name] for name in self.lines.policies]
            self._versions = torch.tensor(versions, dtype=torch.int32, device=self.model.device)
        newest, over = self.lines.record(logits, self._versions)
        ended = set(over)
        for line in self.lines.with_stops:
            row = self.active[line]
            row.newest.append(newest[line])
            if self._stop_texts(row).is_complete(row.newest):
                self.lines.stop(line)
                ended.add(line)
        for line in sorted(ended):
            done = self.active[line].done
            if not done.done():
                done.set_result(self.lines.completion(line))
        self._let_go(sorted(ended))

    def _stop_texts(self, row: Sequence) -> StopTexts:
        stops = row.request.sampling.stop
        if stops not in self._stops:
            self._stops[stops] = StopTexts(self.model.tokenizer, stops)
        return self._stops[stops]

    def _ids(self, line: int) -> Ids:
        """Return the cached tokens of a line: the newest one is read when it decodes."""
        sampled = self.lines.sampled_tokens(line)[:-1]
        return np.concatenate([self.active[line].request.prompt, sampled])

    def _let_go(self, gone: list[int]) -> None:
        """Release the rows' pages; later rows may reuse them, their own tokens included."""
        if not gone:
            return
        for line in gone:
            row = self.active[line]
            if row.request.policy not in self.stale:
                self.allocator.register(self._owner(row), self._ids(line), row.pages)
            self.allocator.release(row.pages)
        self.lines.drop(gone)


def _order(row: Sequence) -> tuple[bool, tuple[str, int, tuple[int, ...]], str]:
    """Return a row's sort key; a row that is partly read goes first."""
    return not row.num_read, row.request.order, row.request.policy
