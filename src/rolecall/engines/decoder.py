"""Rows of all policies of one model in, one more id for each per step out: read, decode, keep.

Policies that train adapters of one base share its rows, its cache and its forward passes. Cache row
i belongs to line i while that is in flight; the rows behind hold what ended ones have read, until
their place is needed.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from rolecall.core import Ids
from rolecall.engines.base import Request
from rolecall.engines.lines import Lines
from rolecall.engines.prefixes import BLOCK, Held, Prefixes, chain
from rolecall.engines.rows import Row, rows_of
from rolecall.kv_cache import Cache, Continue, Decode, Prefill
from rolecall.models import LanguageModel, mixed_logits

PREFILL_IDS = 4096  # most ids that one forward pass reads
CACHE_STEP = 64  # cache lengths are multiples of it, so that a cache is seldom grown


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
        self.cache: Cache | None = None
        self.held: list[Held | None] = []  # by cache row
        self.prefixes = Prefixes()
        self.max_rows = max_rows
        self.clock = 0
        self.num_read = self.num_shared = 0  # prompt ids computed, and taken from the cache
        number = next(self.model.model.parameters())
        per_id = 2 * self.model.num_layers * self.model.num_kv_heads * self.model.head_size
        self.max_ids = cache_bytes // (per_id * number.element_size())

    @property
    def active(self) -> list[Row]:
        return self.lines.rows

    def add(self, request: Request) -> list[Row]:
        """Let a request wait for its turn. Raises ValueError if the prompt leaves no room."""
        longest = min(self.model.max_length, self.max_ids)
        rows = rows_of(request, longest=longest, ends=self.model.end_ids)
        self.waiting += rows
        return rows

    def publish(self, policy: str, version: int) -> None:
        """The policy's weights have changed: its rows go on with what the new ones would see."""
        self.versions[policy] = version
        self.stale.add(policy)

    def step(self) -> None:
        """Read what has come and fits, give every other row one more id, let go what ended."""
        self.clock += 1
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
        self.forget()

    def forget(self) -> None:
        """Free the cache; only while no row is in flight."""
        self.cache, self.held, self.prefixes = None, [], Prefixes()

    # --- reading ---

    def _admit(self) -> None:
        self.waiting.sort(key=lambda row: (row.request.order, row.request.policy))
        fresh = self._fitting()
        while fresh:
            wave, fresh = self._wave(fresh)
            starts = self._place(wave)
            first = len(self.active)
            self.lines.add([row for row, _ in wave])
            places = list(range(first, len(self.active)))
            logits = self._read(places, [row.request.prompt for row, _ in wave], starts)
            for row, _ in wave:
                self.waiting.remove(row)  # only now: a failure must find it
            self._record(slice(first, first + len(wave)), logits)

    def _fitting(self) -> list[Row]:
        """The waiting rows that the cache has room for, in order; it is made large enough."""
        length = max((_room(row) for row in self.active), default=0)
        fresh: list[Row] = []
        for row in self.waiting:
            longer, rows = max(length, _room(row)), len(self.active) + len(fresh) + 1
            if rows > self.max_rows or (rows > 1 and rows * longer > self.max_ids):
                break
            fresh.append(row)
            length = longer
        if fresh:
            self._reserve(rows=len(self.active) + len(fresh), length=length)
        return fresh

    def _reserve(self, *, rows: int, length: int) -> None:
        """Room for these rows in flight, and as much again for what ended ones have read."""
        model, cache = self.model, self.cache
        if cache is not None and rows <= cache.rows and length <= cache.length:
            return
        ahead = min(2 * length, -(-self.model.max_length // CACHE_STEP) * CACHE_STEP)
        for longer in (cache.length if cache is not None else 0, ahead):
            if rows * longer <= self.max_ids:  # growing copies all, so it is done seldom
                length = max(length, longer)
        wanted = max(rows, min(2 * rows, self.max_ids // length))
        if cache is None:
            like = next(model.model.parameters()).detach()
            self.cache = Cache(
                layers=model.num_layers, rows=wanted, heads=model.num_kv_heads, length=length,
                size=model.head_size, like=like,
            )  # fmt: skip
        else:
            self.cache = cache.resized(rows=wanted, length=length)
        for held in self.held[wanted:]:
            self._let_go(held)
        for held in self.held:
            if held is not None and len(held.ids) > length:
                self._let_go(held)
        self.held = (self.held + [None] * wanted)[:wanted]

    def _wave(self, fresh: list[Row]) -> tuple[list[tuple[Row, list[int]]], list[Row]]:
        """Rows to read now, with the hashes of their prompts, and those that had better wait.

        A row waits for the next wave if one of this wave will have read more of its prompt than the
        cache holds: of a group's members, one computes the prompt.
        """
        claimed: dict[int, int] = {}  # hash of a beginning -> its length
        wave, later = [], []
        for row in fresh:
            owner = (row.request.policy, self.versions[row.request.policy])
            keys = chain(owner, row.request.prompt)
            coming = max((claimed[key] for key in keys if key in claimed), default=0)
            if coming > self.prefixes.find(owner, row.request.prompt, keys)[1]:
                later.append(row)
                continue
            claimed |= {key: (place + 1) * BLOCK for place, key in enumerate(keys)}
            wave.append((row, keys))
        return wave, later

    def _place(self, wave: list[tuple[Row, list[int]]]) -> list[int]:
        """Give the wave the cache rows behind those in flight; how much of each is read already."""
        assert self.cache is not None
        first = len(self.active)
        slots = set(range(first, first + len(wave)))
        found = [self._find(row, keys) for row, keys in wave]
        taken: dict[int, int] = {}  # row of the wave -> the slot where its beginning stands already
        for number, (source, shared) in enumerate(found):
            if source is not None and source.slot in slots and shared * 2 > len(source.ids):
                taken[number] = source.slot
                slots.remove(source.slot)
        free = sorted(slots)
        order = {n: taken[n] if n in taken else free.pop(0) for n in range(len(wave))}
        copies = [
            (source.slot, order[n], shared)
            for n, (source, shared) in enumerate(found)
            if source is not None and shared and n not in taken
        ]
        copies += self._saved(set(order.values()), {id(found[n][0]) for n in taken})
        if copies:
            sources, targets, lengths = zip(*copies, strict=True)
            self.cache.copy(list(sources), list(targets), length=max(lengths))
        places = sorted(range(len(wave)), key=lambda n: order[n])
        wave[:] = [wave[n] for n in places]
        for n in places:
            slot = order[n]
            old = self.held[slot]
            if old is not None and old.slot == slot:
                self._let_go(old)
            self.held[slot] = None
        return [found[n][1] if found[n][0] is not None else 0 for n in places]

    def _find(self, row: Row, keys: list[int]) -> tuple[Held | None, int]:
        owner = (row.request.policy, self.versions[row.request.policy])
        source, shared = self.prefixes.find(owner, row.request.prompt, keys)
        if source is not None:
            source.used = self.clock
        return source, shared

    def _saved(self, slots: set[int], taken: set[int]) -> list[tuple[int, int, int]]:
        """Move what ended rows have read out of the slots that are needed, over older ones."""
        assert self.cache is not None
        last = max(slots) + 1
        behind = sorted(
            range(last, self.cache.rows),
            key=lambda slot: -1 if (held := self.held[slot]) is None else held.used,
        )
        moves = []
        for slot in sorted(slots):
            held = self.held[slot]
            if held is None or id(held) in taken:
                continue
            if not behind:
                break
            target = behind.pop(0)
            old = self.held[target]
            if old is not None and old.used >= held.used:
                break
            self._let_go(old)
            moves.append((slot, target, len(held.ids)))
            self.held[target], self.held[slot], held.slot = held, None, target
        return moves

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
            row = self.active[place]
            policy = row.request.policy
            held = Held((policy, self.versions[policy]), prompt, place, used=self.clock)
            row.held = self.held[place] = held
            self.prefixes.add(held)
        return torch.stack([logits[place] for place in places])

    def _forward(self, chunk: list[tuple[int, Ids, int]]) -> Tensor:
        assert self.cache is not None
        places, new, starts = map(list, zip(*chunk, strict=True))
        counts = [len(ids) for ids in new]
        self.num_read += sum(counts)
        self.num_shared += sum(starts)
        layout = (
            Continue(starts, counts, cache=self.cache, rows=places)
            if any(starts)
            else Prefill(counts, cache=self.cache, rows=places)
        )
        device = self.model.device
        tokens = torch.from_numpy(np.concatenate(new)).long().to(device)
        last = torch.tensor(counts, device=device).cumsum(0) - 1
        policies = [self.policies[self.active[place].request.policy] for place in places]
        owners = list(zip(policies, counts, strict=True))
        return mixed_logits(owners, tokens, layout.position, layout=layout, keep=last)

    def _refresh(self) -> None:
        """Read the rows in flight of published policies again: keys and values of new weights."""
        for held in self.held[len(self.active) :]:
            if held is not None and held.owner[0] in self.stale:
                self._let_go(held)
        places = [i for i, row in enumerate(self.active) if row.request.policy in self.stale]
        for place in places:
            self._let_go(self.active[place].held)
        if places:
            self._read(places, [self._ids(place) for place in places], [0] * len(places))
        self.stale = set()

    # --- decoding ---

    def _decode(self) -> None:
        assert self.cache is not None
        lines, rows = self.lines, self.active
        position = lines["length"] - 1
        longest = -(-int(lines["length"].max()) // CACHE_STEP) * CACHE_STEP
        layout = Decode(position, cache=self.cache, length=min(longest, self.cache.length))
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
        assert self.cache is not None
        alive, kept = len(survivors), set(survivors)
        gone = [line for line in range(total) if line not in kept]
        for line in gone:
            self._end(line)
        holes = [line for line in gone if line < alive]
        movers = [line for line in survivors if line >= alive]
        if holes:
            length = int(self.lines["length"].max())
            self.cache.copy(movers + holes, holes + movers, length=min(length, self.cache.length))
            for hole, mover in zip(holes, movers, strict=True):
                self.held[hole], self.held[mover] = self.held[mover], self.held[hole]
                for slot in (hole, mover):
                    held = self.held[slot]
                    if held is not None:
                        held.slot = slot
        order = list(range(alive))
        for hole, mover in zip(holes, movers, strict=True):
            order[hole] = mover
        self.lines.keep(order)

    def _end(self, line: int) -> None:
        """What an ended row has read, its own ids included, can be gone on from."""
        row = self.active[line]
        self._let_go(row.held)
        policy = row.request.policy
        held = Held((policy, self.versions[policy]), self._ids(line), line, used=self.clock)
        self.held[line] = held
        self.prefixes.add(held)

    def _let_go(self, held: Held | None) -> None:
        if held is None:
            return
        if 0 <= held.slot < len(self.held) and self.held[held.slot] is held:
            self.held[held.slot] = None
        self.prefixes.drop(held)


def _room(row: Row) -> int:
    """Cache positions a row may come to need."""
    return -(-(len(row.request.prompt) + row.limit) // CACHE_STEP) * CACHE_STEP
