"""The generated world: its questions follow facts that its passages tell and a search finds."""

from __future__ import annotations

import re

import pytest

from rolecall.environments.search.generated import RELATIONS, SIZES, HopWorld
from rolecall.retrieval.bm25 import Bm25


@pytest.fixture(scope="module")
def world():
    return HopWorld()


def everything(world):
    return [*world.tasks("train"), *world.tasks("test")]


def test_a_world_has_as_many_passages_as_asked_for_each_with_its_own_id_and_title():
    for size in (SIZES[0], 61, 300, SIZES[1]):
        passages = HopWorld(num_passages=size).passages
        assert len(passages) == size
        assert len({p.id for p in passages}) == len({p.title for p in passages}) == size
        assert all(1 <= p.text.count(".") <= 3 for p in passages)


@pytest.mark.parametrize("size", [SIZES[0] - 1, SIZES[1] + 1])
def test_a_size_that_the_names_do_not_allow_is_refused(size):
    with pytest.raises(ValueError, match="passages"):
        HopWorld(num_passages=size)


def test_a_world_depends_on_its_seed_and_size_only(world):
    again = HopWorld()
    assert again.passages == world.passages
    assert again.tasks("train") == world.tasks("train")
    other = HopWorld(seed=1)
    assert [p.text for p in other.passages] != [p.text for p in world.passages]


def test_a_question_of_n_hops_names_n_passages_in_the_order_of_its_chain(world):
    told = {passage.id: passage for passage in world.passages}
    for number in (1, 2, 3):
        tasks = world.tasks("train", hops=[number])
        assert len(tasks) > 100
        for task in tasks:
            info = task.info
            assert len(info["passages"]) == len(set(info["passages"])) == number
            assert len(info["queries"]) == len(info["steps"]) == number
            chain = zip(info["passages"], info["queries"], info["steps"], strict=True)
            values = [*info["queries"][1:], task.answer]
            for (passage, query, step), value in zip(chain, values, strict=True):
                assert told[passage].title == query
                assert step in told[passage].text
                assert query in step
                assert step.endswith(f"{value}.")


def test_a_question_names_its_first_entity_and_none_of_the_later_ones_nor_the_answer(world):
    for task in everything(world):
        first, *later = [*task.info["queries"], task.answer]
        assert first in task.prompt
        assert not any(re.search(rf"\b{name}\b", task.prompt) for name in later)
        assert "{" not in task.prompt


def test_train_and_test_share_neither_questions_nor_facts(world):
    train, test = world.tasks("train"), world.tasks("test")
    assert not {t.prompt for t in train} & {t.prompt for t in test}
    assert not {s for t in train for s in t.info["steps"]} & {
        s for t in test for s in t.info["steps"]
    }
    assert len({t.prompt for t in train}) == len(train) > 2000
    assert len({t.prompt for t in test}) == len(test) > 500
    assert len({t.id for t in everything(world)}) == len(train) + len(test)


def test_even_the_smallest_world_asks_of_every_relation_in_both_splits():
    small = HopWorld(num_passages=SIZES[0])
    for split in ("train", "test"):
        asked = small.tasks(split, hops=[1])
        for relation in RELATIONS:
            form = re.escape(relation.question).replace(r"\{\}", ".+")
            assert any(re.fullmatch(form, task.prompt) for task in asked), relation.name


@pytest.mark.parametrize(("size", "seed"), [(300, 0), (SIZES[1], 1), (SIZES[0], 2)])
def test_the_queries_of_a_demonstrator_find_every_passage_of_the_chain(size, seed):
    world = HopWorld(num_passages=size, seed=seed)
    index = Bm25.from_passages(world.passages)
    queries = sorted({query for task in everything(world) for query in task.info["queries"]})
    by_title = {passage.title: passage.id for passage in world.passages}
    for query, hits in zip(queries, index.search(queries, 3), strict=True):
        assert hits[0].id == by_title[query]


def test_the_question_alone_seldom_finds_the_passage_of_the_answer(world):
    index = Bm25.from_passages(world.passages)
    tasks = world.tasks("test", hops=[3])[:200]
    found = index.search([task.prompt for task in tasks], 3)
    solved = [
        task.info["passages"][-1] in [hit.id for hit in hits]
        for task, hits in zip(tasks, found, strict=True)
    ]
    assert sum(solved) < 0.2 * len(tasks)


def test_the_vocabulary_is_small_and_closed():
    seen = set()
    for seed in range(3):
        world = HopWorld(num_passages=SIZES[1], seed=seed)
        texts = [f"{p.title} {p.text}" for p in world.passages]
        texts += [f"{t.prompt} {t.answer}" for t in everything(world)]
        seen |= {word for text in texts for word in re.findall(r"\w+", text.lower())}
    assert len(seen) < 160


def test_a_world_retold_has_the_same_names_and_other_facts():
    world = HopWorld(num_passages=60)
    other = world.with_new_facts(1)
    assert [p.title for p in other.passages] == [p.title for p in world.passages]
    same = sum(a.text == b.text for a, b in zip(world.passages, other.passages, strict=True))
    assert same < 6
    assert [p.text for p in world.passages] == [p.text for p in HopWorld(num_passages=60).passages]
    assert [p.text for p in world.with_new_facts(1).passages] == [p.text for p in other.passages]
    for task in other.tasks("test"):
        told = " ".join(passage.text for passage in other.passages)
        assert all(step in told for step in task.info["steps"])
