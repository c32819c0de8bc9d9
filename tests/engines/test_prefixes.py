"""What the cache holds is computed once: the same ids and log-probs, fewer ids read."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch

from rolecall.core.interfaces.engine import Completion, Request, Sampling
from rolecall.engines.local import scheduler
from rolecall.engines.local.engine import LocalEngine
from rolecall.engines.local.page_allocator import PageAllocator
from rolecall.models.cpu.kernels import PAGE
from rolecall.runtime.call_tree import IdleBarrier
from tests.toy import alike, language_model

RANDOM = np.random.default_rng(0)
TASK = RANDOM.integers(10, 200, 70).astype(np.int32)


def engine(folder, **options) -> LocalEngine:
    return LocalEngine({"p": language_model(folder)}, barrier=IdleBarrier(), **options)


def ask(number: int, prompt: np.ndarray, length: int = 12, n: int = 1) -> Request:
    sampling = Sampling(max_tokens=length)
    return Request(f"r{number}", "p", prompt, sampling, number, (f"r{number}", 0, (0,)), n=n)


def conversation(made: LocalEngine, members: int = 6) -> list[Completion]:
    """A group on one prompt; every member is then asked about its own words, twice over."""

    async def member(number: int) -> list[Completion]:
        prompt, said = TASK, []
        for round_ in range(3):
            [done] = await made.generate(ask(10 * number + round_, prompt, 6 + 3 * number))
            said.append(done)
            tail = np.arange(number, number + 9, dtype=np.int32) + 30
            prompt = np.concatenate([prompt, done.tokens, tail])
        return said

    async def main() -> list[Completion]:
        groups = await asyncio.gather(*(member(number) for number in range(members)))
        return [done for group in groups for done in group]

    return asyncio.run(main())


def cold(folder, monkeypatch, work) -> list[Completion]:
    """The same by an engine that never finds anything in its cache."""
    with monkeypatch.context() as patch:
        patch.setattr(PageAllocator, "lookup", lambda self, owner, ids: [])
        return work(engine(folder))


def full(ids: int) -> int:
    """How many of them stand in full pages."""
    return ids // PAGE * PAGE


def assert_same(ours: list[Completion], theirs: list[Completion]) -> None:
    assert [c.tokens.tolist() for c in ours] == [c.tokens.tolist() for c in theirs]
    for a, b in zip(ours, theirs, strict=True):
        assert alike(a.logprobs, b.logprobs)
        assert a.finish == b.finish


def test_group_members_and_later_turns_read_what_is_new_only(any_model_folder, monkeypatch):
    made = engine(any_model_folder)
    warm = conversation(made)
    assert_same(warm, cold(any_model_folder, monkeypatch, conversation))
    held = made._schedulers["p"]
    wanted = len(TASK) + 5 * (len(TASK) % PAGE)  # of the task, full pages are read once
    for number in range(0, len(warm), 3):
        length = len(TASK)
        for done in warm[number : number + 2]:
            length += len(done.tokens)
            wanted += 9 + length - full(length - 1)  # the newest id was not read
            length += 9
    assert held.num_read == wanted


def test_candidates_share_their_prompt(model_folder, monkeypatch):
    def work(made):
        return asyncio.run(made.generate(ask(1, TASK, n=16)))

    made = engine(model_folder)
    said = work(made)
    assert len({tuple(c.tokens.tolist()) for c in said}) > 8
    assert made._schedulers["p"].num_read == len(TASK) + 15 * (len(TASK) - full(len(TASK)))
    assert_same(said, cold(model_folder, monkeypatch, work))


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_a_cache_without_room_for_ended_rows_changes_no_id(model_folder, monkeypatch, rows):
    per_id = 2 * 2 * 2 * 8 * 4  # keys and values, layers, key-value heads, head size, bytes
    tight = engine(model_folder, cache_gb=rows * 192 * per_id / 1e9, max_sequences=rows)
    assert_same(conversation(tight), cold(model_folder, monkeypatch, conversation))
    keys = tight._schedulers["p"].allocator.cache.keys[0]
    assert keys.shape[0] * PAGE <= rows * 192


def test_a_prompt_longer_than_one_pass_is_read_in_pieces(model_folder, monkeypatch):
    long = RANDOM.integers(10, 200, 150).astype(np.int32)

    def work(made):
        async def main():
            both = [made.generate(ask(n, prompt)) for n, prompt in enumerate((long, TASK, long))]
            return [done for [done] in await asyncio.gather(*both)]

        return asyncio.run(main())

    whole = cold(model_folder, monkeypatch, work)
    monkeypatch.setattr(scheduler, "PREFILL_TOKENS", 40)
    assert_same(work(engine(model_folder)), whole)


def test_other_weights_share_nothing(model_folder):
    made = engine(model_folder)

    async def main():
        await made.generate(ask(1, TASK))
        before = made._schedulers["p"].num_shared
        await made.generate(ask(2, TASK))
        shared = made._schedulers["p"].num_shared
        made.load("p", 1, None)
        await made.generate(ask(3, TASK))
        return before, shared, made._schedulers["p"].num_shared

    before, shared, after = asyncio.run(main())
    assert before == 0
    assert shared == full(len(TASK) - 1)
    assert after == shared, "keys of the cache contain the version"


def test_a_request_cancelled_in_any_phase_frees_its_pages_and_the_others_go_on(
    model_folder, monkeypatch
):
    monkeypatch.setattr(scheduler, "PREFILL_TOKENS", 40)
    alone = cold(model_folder, monkeypatch, lambda e: asyncio.run(e.generate(ask(9, TASK, 30))))
    long = RANDOM.integers(10, 200, 150).astype(np.int32)
    seen: set[str] = set()

    async def main(steps: int):
        """Every request but one is cancelled after so many steps."""
        made = engine(model_folder, max_sequences=3)
        prompts = [TASK, long, TASK, long]  # the last ones wait until there is room
        others = [asyncio.create_task(made.generate(ask(n, p, 200))) for n, p in enumerate(prompts)]
        kept = asyncio.create_task(made.generate(ask(9, TASK, 30)))
        for _ in range(steps):
            await asyncio.sleep(0)
        held = made._schedulers["p"]
        seen.update("waiting" for row in held.waiting if not row.pages)
        seen.update("reading" for row in held.waiting if row.num_read)
        seen.update("decoding" for row in held.active)
        for task in others:
            task.cancel()
        [done] = await kept
        await asyncio.gather(*others, return_exceptions=True)
        while made._pump is not None and not made._pump.done():
            await asyncio.sleep(0)
        assert (held.waiting, held.active, made._rows) == ([], [], {})
        assert not held.allocator._users.any()
        return done

    for steps in range(1, 40, 2):
        assert_same([asyncio.run(main(steps))], alone)
    assert seen == {"waiting", "reading", "decoding"}


@pytest.mark.parametrize(
    ("gigabytes", "message"),
    [(1e-9, "hold no 16 tokens"), (1e6, r"1e\+06 GB, but cpu has \d+\.\d GB")],
)
def test_an_impossible_memory_budget_is_an_error_that_names_the_limit(
    model_folder, gigabytes, message
):
    with pytest.raises(ValueError, match=f"engine.cache_gb: .*{message}"):
        engine(model_folder, cache_gb=gigabytes)


def test_a_prompt_longer_than_the_cache_is_refused_by_itself(model_folder):
    made = engine(model_folder, cache_gb=5 * PAGE * 2 * 2 * 2 * 8 * 4 / 1e9)

    async def both():
        long = made.generate(ask(1, np.resize(TASK, 80).astype(np.int32)))
        return await asyncio.gather(long, made.generate(ask(2, TASK)), return_exceptions=True)

    failed, fine = asyncio.run(both())
    assert isinstance(failed, ValueError)
    assert str(failed) == "the prompt of r1 has 80 tokens; the cache of policy 'p' has room for 79"
    assert 1 <= len(fine[0].tokens) <= 10


def test_the_longest_known_beginning_is_found_and_the_last_id_never_counts(model_folder):
    allocator = PageAllocator(language_model(model_folder), cache_bytes=10**6, like=torch.zeros(1))
    ids = np.arange(100, dtype=np.int32)
    owner = ("p", 0)
    short, long = (
        allocator.allocate(owner, ids[:40], room=40),
        allocator.allocate(owner, ids[:90], room=90),
    )
    assert (short[1], long[1]) == (0, 0), "nothing is known before it was read"
    allocator.register(owner, ids[:40], short[0])
    allocator.register(owner, ids[:90], long[0])

    def find(wanted, owner=owner):
        return allocator.lookup(owner, np.asarray(wanted, dtype=np.int32))

    whole = short[0][:2] + long[0][2:5]  # what two rows hold alike is found in the first
    assert find(ids[:81]) == whole
    assert find(ids[:80]) == whole[:4], "the last id is computed"
    assert find(ids) == whole
    assert find(np.append(ids[:50], 7)) == whole[:3]
    assert find(np.append(7, ids[1:])) == []
    assert find(ids[:PAGE]) == []
    assert find(ids[:80], ("q", 0)) == []
    assert find(ids[:80], ("p", 1)) == []


def test_pages_of_ended_rows_are_given_away_last_words_first(model_folder):
    per_page = PAGE * 2 * 2 * 2 * 8 * 4
    allocator = PageAllocator(
        language_model(model_folder), cache_bytes=6 * per_page, like=torch.zeros(1)
    )
    owner = ("p", 0)
    old, new = np.arange(48, dtype=np.int32), np.arange(100, 132, dtype=np.int32)
    for ids in (old, new):
        pages, _ = allocator.allocate(owner, ids, room=len(ids))
        allocator.register(owner, ids, pages)
        allocator.release(pages)

    def known(ids):
        return len(allocator.lookup(owner, np.append(ids, 1).astype(np.int32)))

    assert known(old) == 3
    assert allocator.allocate(("q", 0), old, room=7 * PAGE) is None, "more than there is"
    assert known(old) == 3, "and nothing was lost by asking"
    taken, shared = allocator.allocate(("q", 0), old, room=2 * PAGE)
    assert shared == 0
    assert (known(old), known(new)) == (2, 2)
    again, shared = allocator.allocate(owner, np.append(new, 1).astype(np.int32), room=3 * PAGE)
    assert shared == 2 * PAGE
    assert len(set(taken) | set(again)) == 5
    assert allocator.allocate(("q", 0), new, room=2 * PAGE) is None, (
        "pages in use are not given away"
    )
    allocator.release(again)
    allocator.unregister_all({"p"})
    assert known(new) == 0
    pages, _ = allocator.allocate(("q", 0), new, room=4 * PAGE)
    assert not set(pages) & set(taken)


def test_sleep_keeps_the_pages_of_a_prompt_that_is_read_in_part(model_folder, monkeypatch):
    def work(made, *, slept=False):
        async def main():
            task = asyncio.create_task(made.generate(ask(1, np.resize(TASK, 150))))
            held = made._schedulers["p"]
            while slept and not any(row.num_read for row in held.waiting):
                await asyncio.sleep(0)
            if slept:
                await made.sleep(weights=False)
            return await task

        return asyncio.run(main())

    wanted = cold(model_folder, monkeypatch, work)
    monkeypatch.setattr(scheduler, "PREFILL_TOKENS", 40)
    assert_same(work(engine(model_folder), slept=True), wanted)


def test_beyond_what_is_expected_idle_pages_are_used_before_new_ones_and_rows_still_fit(
    model_folder,
):
    model = language_model(model_folder)
    per_page = PAGE * 2 * 2 * 2 * 8 * 4
    allocator = PageAllocator(
        model, cache_bytes=6 * per_page, like=torch.zeros(1), expected_ids=3 * PAGE
    )
    touched = set()
    for number in range(5):  # each reads words of its own, and ends
        ids = np.arange(2 * PAGE, dtype=np.int32) + 100 * number
        pages, _ = allocator.allocate(("p", 0), ids, room=len(ids))
        allocator.register(("p", 0), ids, pages)
        allocator.release(pages)
        touched |= set(pages)
    assert len(touched) == 3
    pages, _ = allocator.allocate(("p", 0), np.full(80, 7, np.int32), room=6 * PAGE)
    assert len(set(pages)) == 6
    less = PageAllocator(
        model, cache_bytes=4 * per_page, like=torch.zeros(1), expected_ids=9 * PAGE
    )
    for number in range(4):  # a cache smaller than what is expected has no more pages than it has
        ids = np.arange(2 * PAGE, dtype=np.int32) + 100 * number
        pages, _ = less.allocate(("p", 0), ids, room=len(ids))
        assert max(pages) < less.num_pages == 4
        less.register(("p", 0), ids, pages)
        less.release(pages)
    few = PageAllocator(model, cache_bytes=10**8, like=torch.zeros(1), max_rows=2)
    assert few.max_ids == 2 * -(-model.max_length // PAGE) * PAGE
