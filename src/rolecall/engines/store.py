"""Where the keys and values of rows stand: the first cache rows are those in flight, the rest hold
what ended ones have read, until their place is needed.
"""

from __future__ import annotations

from rolecall.core import Ids
from rolecall.engines.prefixes import Held, Owner, Prefixes
from rolecall.kv_cache import Cache
from rolecall.models import LanguageModel

CACHE_STEP = 64  # cache lengths are multiples of it, so that a cache is seldom grown
Found = tuple[Held | None, int]  # who holds the beginning of a prompt, and how much of it


class Store:
    """The cache of one model, and what each of its rows holds."""

    def __init__(self, model: LanguageModel, *, cache_bytes: int) -> None:
        self.model = model
        number = next(model.model.parameters())
        per_id = 2 * model.num_layers * model.num_kv_heads * model.head_size
        self.max_ids = cache_bytes // (per_id * number.element_size())
        self.clock = 0
        self.forget()

    def forget(self) -> None:
        """Free everything; only while no row is in flight."""
        self._cache: Cache | None = None
        self._held: list[Held | None] = []
        self._prefixes = Prefixes()

    @property
    def cache(self) -> Cache:
        assert self._cache is not None, "nothing was reserved"
        return self._cache

    def reserve(self, *, rows: int, length: int) -> None:
        """Room for these rows in flight, and as much again for what ended ones have read."""
        model, cache = self.model, self._cache
        if cache is not None and rows <= cache.rows and length <= cache.length:
            return
        ahead = min(2 * length, -(-model.max_length // CACHE_STEP) * CACHE_STEP)
        for longer in (cache.length if cache is not None else 0, ahead):
            if rows * longer <= self.max_ids:  # growing copies all, so it is done seldom
                length = max(length, longer)
        wanted = max(rows, min(2 * rows, self.max_ids // length))
        if cache is None:
            like = next(model.model.parameters()).detach()
            self._cache = Cache(
                layers=model.num_layers, rows=wanted, heads=model.num_kv_heads, length=length,
                size=model.head_size, like=like,
            )  # fmt: skip
        else:
            self._cache = cache.resized(rows=wanted, length=length)
        for slot, held in enumerate(self._held):
            if held is not None and (slot >= wanted or len(held.ids) > length):
                self.let_go(held)
        self._held = (self._held + [None] * wanted)[:wanted]

    def find(self, owner: Owner, ids: Ids, keys: list[int]) -> Found:
        """Who holds the longest known beginning of `ids`, whose chain of hashes is `keys`."""
        source, shared = self._prefixes.find(owner, ids, keys)
        if source is not None:
            source.used = self.clock
        return source, shared

    def place(self, found: list[Found], *, first: int) -> list[int]:
        """Slots from `first` on for as many new rows, their beginnings copied there: [rows].

        A beginning that stands in one of these slots already stays, if it is most of what is there.
        """
        slots = set(range(first, first + len(found)))
        taken: dict[int, int] = {}  # new row -> the slot where its beginning stands
        for number, (source, shared) in enumerate(found):
            if source is not None and source.slot in slots and shared * 2 > len(source.ids):
                taken[number] = source.slot
                slots.remove(source.slot)
        free = sorted(slots, reverse=True)
        order = [taken[n] if n in taken else free.pop() for n in range(len(found))]
        copies = [
            (source.slot, order[n], shared)
            for n, (source, shared) in enumerate(found)
            if source is not None and shared and n not in taken
        ]
        copies += self._moved_away(sorted(slots), end=first + len(found))
        if copies:
            sources, targets, lengths = map(list, zip(*copies, strict=True))
            self.cache.copy(sources, targets, length=max(lengths))
        for slot in order:
            self.let_go(self._held[slot])
        return order

    def _moved_away(self, slots: list[int], *, end: int) -> list[tuple[int, int, int]]:
        """What ended rows have read goes from the slots that are needed over older readings."""
        behind = sorted(
            range(end, self.cache.rows),
            key=lambda slot: -1 if (held := self._held[slot]) is None else held.used,
            reverse=True,
        )
        moves = []
        for slot in slots:
            held = self._held[slot]
            if held is None:
                continue
            old = self._held[behind[-1]] if behind else held
            if old is not None and old.used >= held.used:
                break
            target = behind.pop()
            self.let_go(old)
            moves.append((slot, target, len(held.ids)))
            self._held[target], self._held[slot], held.slot = held, None, target
        return moves

    def hold(self, slot: int, owner: Owner, ids: Ids) -> None:
        """From now on this slot holds the keys and values of `ids`."""
        self.let_go(self._held[slot])
        held = Held(owner, ids, slot, used=self.clock)
        self._held[slot] = held
        self._prefixes.add(held)

    def swap(self, holes: list[int], movers: list[int], *, length: int) -> None:
        """What stands in these slots changes places, up to `length` positions."""
        length = min(length, self.cache.length)
        self.cache.copy(movers + holes, holes + movers, length=length)
        for hole, mover in zip(holes, movers, strict=True):
            self._held[hole], self._held[mover] = self._held[mover], self._held[hole]
            for slot in (hole, mover):
                held = self._held[slot]
                if held is not None:
                    held.slot = slot

    def let_go_of(self, policies: set[str]) -> None:
        """Nothing that these policies have read is of use any more."""
        for held in list(self._held):
            if held is not None and held.owner[0] in policies:
                self.let_go(held)

    def let_go(self, held: Held | None) -> None:
        if held is not None:
            self._held[held.slot] = None
            self._prefixes.drop(held)
