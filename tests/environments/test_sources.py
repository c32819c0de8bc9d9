"""Tasks of several sources: in order, with ids of their own, and never without end."""

from __future__ import annotations

import pytest

from rolecall.core.interfaces.environment import ENDLESS
from rolecall.core.types import Task
from rolecall.data.sources import MOST_MIXED, gather, list_sources
from rolecall.environments.math.generated import Generated


def read(source: str):
    if source == "generated":
        return Generated("train", level=1, kinds=("expression",), seed=0)
    return [Task(f"{n}", f"{source} {n}") for n in range(3)]


def test_a_single_endless_source_stays_endless():
    assert len(gather(["generated"], read=read)) == ENDLESS
    assert [task.id for task in gather(["a.jsonl"], read=read)] == ["0", "1", "2"]


def test_an_endless_source_beside_others_has_an_end():
    tasks = gather(["data/a.jsonl", "generated"], read=read)
    assert len(tasks) == 3 + MOST_MIXED
    assert [task.id for task in tasks[:3]] == ["a/0", "a/1", "a/2"]
    assert len({task.id for task in tasks}) == len(tasks)


def test_no_source_is_an_error():
    with pytest.raises(ValueError, match="the list of sources is empty"):
        list_sources([])


def test_no_row_of_a_long_source_is_left_out_beside_others():
    long = [Task(f"t{number}", "?", "1") for number in range(MOST_MIXED + 5)]
    found = gather(["a.jsonl", "b.jsonl"], read=lambda _: long)
    assert len(found) == 2 * len(long)
