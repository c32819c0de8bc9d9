"""Rows of all policies of one model in, one more id for each per step out: read, decode, keep.

Policies that train adapters of one base share its rows, its cache and its forward passes. Cache row
i belongs to line i while that is in flight.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rolecall.core import Ids
from rolecall.engines.base import Request
from rolecall.engines.lines import Lines
from rolecall.engines.prefixes import BLOCK, Owner, chain
from rolecall.engines.rows import Row, rows_of
from rolecall.engines.store import CACHE_STEP, Found, Store
from rolecall.kv_cache import Continue, Decode, Prefill
from rolecall.models import LanguageModel, mixed_logits

PREFILL_IDS = 4096  # most ids that one forward pass reads


class Decoder:
    """The rows of the policies of one model."""

    def __init__(
        self, policies: dict[str, LanguageModel], *, max_rows: int, cache_bytes: int
    ) -> None:
        self.policies = policies
        self.model = next(iter(policies.values()))  # all of them have its sizes and its tokenizer
        self.versions = dict.fromkeys(policies, 0)
        self.stale: set[str] = set()  # policies published since their rows were last read
        self.waiting: list[Row] = []
        self.lines = Lines(vocabulary=self.model.vocabulary, device=self.model.device)
        self.store = Store(self.model, cache_bytes=cache_bytes)
        self.max_rows = max_rows
        self.num_read = self.num_shared = 0  # prompt ids computed, and taken from the cache

    @property
    def active(self) -> list[Row]:
        return self.lines.rows

    def add(self, request: Request) -> list[Row]:
        """Let a request wait for its turn. Raises ValueError if the prompt leaves no room."""
        longest = min(self.model.max_length, self.store.max_ids)
        rows = rows_of(request, longest=longest, ends=self.model.end_ids)
        self.waiting += rows
        return rows

    def publish(self, policy: str, version: int) -> None:
        """The policy's weights have changed: its rows go on with what the new ones would see."""
        self.versions[policy] = version
        self.stale.add(policy)

    def step(self) -> None:
        """Read what has come and fits, give every other row one more id, let go what ended."""
        self.store.clock += 1
        self._keep([i for i, row in enumerate(self.active) if not row.done.done()])
        if self.stale:
            self._refresh()
        if self.waiting and len(self.active) < self.max_rows:
            self._admit()
        if self.active:
            self._decode()

    def fail(self, error: Exception) -> None:
        for row in (*self.waiting, *self.active):
            if not row.done.done():
                row.done.set_exception(error)
        self.waiting = []
        self.lines.keep([])
        self.store.forget()

    # --- reading ---

    def _admit(self) -> None:
        self.waiting.sort(key=lambda row: (row.request.order, row.request.policy))
        fresh = self._fitting()
        while fresh:
            first = len(self.active)
            wave, found, fresh = self._wave(fresh)
            slots = self.store.place(found, first=first)
            by_slot = sorted(
                zip(slots, wave, (shared for _, shared in found), strict=True),
                key=lambda one: one[0],
            )
            wave, starts = [row for _, row, _ in by_slot], [start for *_, start in by_slot]
            self.lines.add(wave)
            logits = self._read(sorted(slots), [row.request.prompt for row in wave], starts)
            read = set(map(id, wave))  # they waited until now: a failure must find them
            self.waiting = [row for row in self.waiting if id(row) not in read]
            self._record(slice(first, first + len(wave)), logits)

    def _fitting(self) -> list[Row]:
        """The waiting rows that the cache has room for, in order; it is made large enough."""
        length = max((_room(row) for row in self.active), default=0)
        fresh: list[Row] = []
        for row in self.waiting:
            longer, rows = max(length, _room(row)), len(self.active) + len(fresh) + 1
            if rows > self.max_rows or (rows > 1 and rows * longer > self.store.max_ids):
                break
            fresh.append(row)
            length = longer
        if fresh:
            self.store.reserve(rows=len(self.active) + len(fresh), length=length)
        return fresh

    def _wave(self, fresh: list[Row]) -> tuple[list[Row], list[Found], list[Row]]:
        """Rows to read now, who holds their beginnings, and the rows that had better wait.

        A row waits for the next wave if one of this wave will have read more of its prompt than the
        cache holds: of a group's members, one computes the prompt.
        """
        claimed: dict[int, int] = {}  # hash of a beginning -> its length
        wave, found, later = [], [], []
        for row in fresh:
            owner = self._owner(row)
            keys = chain(owner, row.request.prompt)
            source, shared = self.store.find(owner, row.request.prompt, keys)
            if max((claimed[key] for key in keys if key in claimed), default=0) > shared:
                later.append(row)
                continue
            claimed |= {key: (place + 1) * BLOCK for place, key in enumerate(keys)}
            wave.append(row)
            found.append((source, shared))
        return wave, found, later

    def _owner(self, row: Row) -> Owner:
        return row.request.policy, self.versions[row.request.policy]

    def _read(self, places: list[int], prompts: list[Ids], starts: list[int]) -> Tensor:
        """Fill these cache rows from `starts` on; logits after the last id of each, [rows, V]."""
        logits: dict[int, Tensor] = {}
        todo = sorted(
            zip(places, prompts, starts, strict=True), key=lambda one: len(one[1]) - one[2]
        )
        while todo:
            chunk: list[tuple[int, Ids, int]] = []  # place, new ids, how many stand before them
            ids = 0
            while todo and (not chunk or ids + len(todo[0][1]) - todo[0][2] <= PREFILL_IDS):
                place, prompt, start = todo.pop(0)
                end = min(len(prompt), start + PREFILL_IDS)
                chunk.append((place, prompt[start:end], start))
                ids += end - start
                if end < len(prompt):  # the rest comes in further passes
                    todo.insert(0, (place, prompt, end))
                    break
            logits |= zip([place for place, _, _ in chunk], self._forward(chunk), strict=True)
        for place, prompt in zip(places, prompts, strict=True):
            self.store.hold(place, self._owner(self.active[place]), prompt)
        return torch.stack([logits[place] for place in places])

    def _forward(self, chunk: list[tuple[int, Ids, int]]) -> Tensor:
        places, new, starts = map(list, zip(*chunk, strict=True))
        counts = [len(ids) for ids in new]
        self.num_read += sum(counts)
        self.num_shared += sum(starts)
        layout = (
            Continue(starts, counts, cache=self.store.cache, rows=places)
            if any(starts)
            else Prefill(counts, cache=self.store.cache, rows=places)
        )
        device = self.model.device
        tokens = torch.from_numpy(np.concatenate(new)).long().to(device)
        last = torch.tensor(counts, device=device).cumsum(0) - 1
        policies = [self.policies[self.active[place].request.policy] for place in places]
        owners = list(zip(policies, counts, strict=True))
        return mixed_logits(owners, tokens, layout.position, layout=layout, keep=last)

    def _refresh(self) -> None:
        """Read the rows in flight of published policies again: keys and values of new weights."""
        self.store.let_go_of(self.stale)
        places = [i for i, row in enumerate(self.active) if row.request.policy in self.stale]
        if places:
            self._read(places, [self._ids(place) for place in places], [0] * len(places))
        self.stale = set()

    # --- decoding ---

    def _decode(self) -> None:
        lines, rows = self.lines, self.active
        position = lines["length"] - 1
        cache = self.store.cache
        longest = -(-int(lines["length"].max()) // CACHE_STEP) * CACHE_STEP
        layout = Decode(position, cache=cache, length=min(longest, cache.length))
        owners = [(self.policies[row.request.policy], 1) for row in rows]
        keep = torch.arange(len(rows), device=self.model.device)
        logits = mixed_logits(owners, lines["newest"], position, layout=layout, keep=keep)
        self._record(slice(0, len(rows)), logits)

    def _record(self, lines: slice, logits: Tensor) -> None:
        rows = self.active[lines]
        versions = torch.tensor(
            [self.versions[row.request.policy] for row in rows], dtype=torch.int32,
            device=self.model.device,
        )  # fmt: skip
        ended = set(self.lines.record(lines, logits, versions))
        for line in range(lines.start, lines.stop):
            row = self.active[line]
            if row.request.sampling.stop and row.stopped(
                self.model.tokenizer, self.lines.sampled(line).cpu().numpy()
            ):
                self.lines.stop(line)
                ended.add(line)
        if ended:
            for line in sorted(ended):
                row = self.active[line]
                if not row.done.done():
                    row.done.set_result(self.lines.completion(line))
            self._keep([i for i in range(len(self.active)) if i not in ended])

    def _ids(self, line: int) -> Ids:
        """What the cache row of a line holds: the newest id is read when it decodes."""
        sampled = self.lines.sampled(line)[:-1].cpu().numpy()
        return np.concatenate([self.active[line].request.prompt, sampled])

    def _keep(self, survivors: list[int]) -> None:
        """Let the others go: the last survivors fill the holes, what others read stays behind."""
        total = len(self.active)
        if len(survivors) == total:
            return
        alive, kept = len(survivors), set(survivors)
        gone = [line for line in range(total) if line not in kept]
        for line in gone:  # what they have read, their own ids included, can be gone on from
            self.store.hold(line, self._owner(self.active[line]), self._ids(line))
        holes = [line for line in gone if line < alive]
        movers = [line for line in survivors if line >= alive]
        if holes:
            self.store.swap(holes, movers, length=int(self.lines["length"].max()))
        order = list(range(alive))
        for hole, mover in zip(holes, movers, strict=True):
            order[hole] = mover
        self.lines.keep(order)


def _room(row: Row) -> int:
    """Cache positions a row may come to need."""
    return -(-(len(row.request.prompt) + row.limit) // CACHE_STEP) * CACHE_STEP
