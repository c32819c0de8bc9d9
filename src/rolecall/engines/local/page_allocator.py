"""Allocates the cache pages of one model and finds those that hold a new prompt's beginning.

What a row has read stays useful after it ended: for the members of a group, for an agent's next
call, for another agent of the same policy that reads the same words.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
from torch import Tensor

from rolecall.core.types import Ids
from rolecall.models.attention.kv_cache import Cache
from rolecall.models.cpu.kernels import PAGE
from rolecall.models.devices import memory_in
from rolecall.models.language_model import LanguageModel

# Policy, version and whether rows have long positions: each makes other keys and values.
Owner = tuple[str, int, bool]
Name = tuple[Owner | int, bytes]  # what stands before a page, and its own tokens


class PageAllocator:
    """Pages by number. A page is free, in use by some rows, or idle: kept until it is needed.

    A full page may have a name. Names form chains, so a page is found only by all the tokens from
    the first on that its keys and values depend on. The tokens are compared, not their hashes.
    """

    def __init__(
        self,
        model: LanguageModel,
        *,
        cache_bytes: int,
        like: Tensor,
        max_rows: int | None = None,
        expected_ids: int | None = None,
    ) -> None:
        """`like`: a number as keys and values are, on their device.

        `max_rows`: rows at once; no more pages are made than these can fill. `expected_ids`: what
        they fill as far as the config says it. Beyond it idle pages are used again before new ones
        are touched, which on a CPU cost no memory until then.

        Raises ValueError for less memory than a page needs and for more than there is.
        """
        self.model, self.like = model, like
        per_id = 2 * model.num_layers * model.num_kv_heads * model.head_size
        per_page = per_id * PAGE * like.element_size()
        self.num_pages = cache_bytes // per_page
        if max_rows is not None:
            self.num_pages = min(self.num_pages, max_rows * count_pages(model.max_length))
        expected = self.num_pages if expected_ids is None else count_pages(expected_ids)
        self._expected = min(self.num_pages, expected)
        self.max_ids = self.num_pages * PAGE
        if not self.num_pages:
            raise ValueError(
                f"engine.cache_gb: {cache_bytes / 1e9:g} GB hold no {PAGE} tokens of this model, "
                f"which take {per_page / 1e9:g} GB"
            )
        installed = memory_in(model.device)
        if cache_bytes > installed:
            raise ValueError(
                f"engine.cache_gb: {cache_bytes / 1e9:g} GB, but {model.device} has "
                f"{installed / 1e9:.1f} GB"
            )
        self._cache: Cache | None = None
        self.clear(free=True)

    def clear(self, *, free: bool) -> None:
        """Let nothing be found that was read; only while no row is in flight.

        `free`: give the memory back too. The next cache then lies elsewhere.
        """
        if free:
            self._cache = None
        self._users = np.zeros(self.num_pages, dtype=np.int32)
        self._num_touched = 0  # pages from here on were never used
        self._free: list[int] = []  # used before, and taken before those
        self._idle: OrderedDict[int, None] = OrderedDict()  # the first is taken first
        self._found: dict[Name, int] = {}
        self._names: dict[int, Name] = {}  # by page
        self._links: dict[int, int] = {}  # page -> what a page behind it calls it, never used twice
        self._num_links = 0

    @property
    def cache(self) -> Cache:
        if self._cache is None:
            model = self.model
            self._cache = Cache(
                layers=model.num_layers, pages=self.num_pages, heads=model.num_kv_heads,
                size=model.head_size, like=self.like,
            )  # fmt: skip
        return self._cache

    def allocate(self, owner: Owner, ids: Ids, *, room: int) -> tuple[list[int], int] | None:
        """Pages for `room` ids that begin with `ids`, and how many of these are read already.

        The last token is never counted: what follows it must be computed. None if there is no room.
        """
        cached = self.lookup(owner, ids)
        fresh = count_pages(room) - len(cached)
        idle = sum(self._users[page] == 0 for page in cached)
        if fresh > len(self._free) + self.num_pages - self._num_touched + len(self._idle) - idle:
            return None
        for page in cached:
            self._users[page] += 1
            self._idle.pop(page, None)
        pages = cached + [self._fresh() for _ in range(fresh)]
        return pages, len(cached) * PAGE

    def lookup(self, owner: Owner, ids: Ids) -> list[int]:
        """Return the pages that hold a beginning of `ids`, leaving out the last id."""
        link: Owner | int = owner
        pages: list[int] = []
        for end in range(PAGE, len(ids), PAGE):
            page = self._found.get((link, ids[end - PAGE : end].tobytes()))
            if page is None:
                break
            pages.append(page)
            link = self._links[page]
        return pages

    def register(self, owner: Owner, ids: Ids, pages: list[int]) -> None:
        """Let the full ones of these pages, which hold the keys and values of `ids`, be found."""
        link: Owner | int = owner
        for number, end in enumerate(range(PAGE, len(ids) + 1, PAGE)):
            name = (link, ids[end - PAGE : end].tobytes())
            page = self._found.get(name)
            if page is None:  # else another one holds the same
                page = pages[number]
                self._unregister(page)
                self._found[name], self._names[page] = page, name
                self._num_links += 1
                self._links[page] = self._num_links
            link = self._links[page]

    def release(self, pages: list[int]) -> None:
        """Release a row's pages; the end of what it read is reused before its beginning."""
        for page in reversed(pages):
            self._users[page] -= 1
            if self._users[page]:
                continue
            if page in self._names:
                self._idle[page] = None
            else:
                self._free.append(page)

    def unregister_all(self, policies: set[str]) -> None:
        """Forget what these policies have read, so that nothing of it can be found any more."""
        gone: set[int] = set()
        for page, (link, _) in sorted(self._names.items(), key=lambda one: self._links[one[0]]):
            if link in gone or (isinstance(link, tuple) and link[0] in policies):
                gone.add(self._links[page])
                self._unregister(page)
                if not self._users[page]:
                    del self._idle[page]
                    self._free.append(page)

    def _fresh(self) -> int:
        if self._free:
            page = self._free.pop()
        elif self._num_touched < (self._expected if self._idle else self.num_pages):
            page = self._num_touched
            self._num_touched += 1
        else:
            page, _ = self._idle.popitem(last=False)
            self._unregister(page)
        self._users[page] = 1
        return page

    def _unregister(self, page: int) -> None:
        name = self._names.pop(page, None)
        if name is not None:
            del self._found[name], self._links[page]


def count_pages(ids: int) -> int:
    return -(-ids // PAGE)
