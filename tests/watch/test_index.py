"""The index of turns: what is read once, kept for the next server, and read again."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import numpy as np
import pytest

from rolecall.storage.run_folder import RunFolder
from rolecall.watch.index import KINDS, TurnIndex
from rolecall.watch.index_cache import choose_file, load_index
from tests.watch.small_runs import write_run, write_step

TURNS = 8  # of a step


@pytest.fixture
def run(tmp_path) -> Path:
    return write_run(tmp_path / "run", steps=4)


def open_index(run: Path, cache: Path) -> TurnIndex:
    return TurnIndex(run / "episodes", cache=cache, least_rows=0)


def rows(index: TurnIndex) -> list[tuple[int, str, str, int]]:
    """Step, agent, task and place in the file of all turns, in the order of the index."""
    return [
        (int(columns.step[n]), *(names(columns, name, n) for name in ("agent", "task")), int(place))
        for columns in index.iterate_columns()
        for n, place in enumerate(columns.values["row"])
    ]


def names(columns, name: str, row: int) -> str:
    return columns.names[name].texts[columns.values[name][row]]


def damage(file: Path) -> None:
    """Write zeros over a file that looks the same from outside."""
    status = file.stat()
    with file.open("r+b") as opened:
        opened.write(bytes(status.st_size))
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


def test_the_newest_step_comes_first_and_its_turns_in_their_order(run):
    read = rows(TurnIndex(run / "episodes"))
    assert [step for step, *_ in read] == [4] * TURNS + [3] * TURNS + [2] * TURNS + [1] * TURNS
    assert [place for *_, place in read[:TURNS]] == [*range(TURNS)]
    assert read[0][:3] == (4, "solver", "add")


def test_a_second_server_reads_no_file_that_is_as_it_was(run, tmp_path):
    cache = tmp_path / "cache.npz"
    first = open_index(run, cache)
    first.read_all()
    before = rows(first)
    for file in (run / "episodes").iterdir():
        damage(file)
    assert rows(open_index(run, cache)) == before
    assert rows(TurnIndex(run / "episodes")) == []


def test_a_step_that_was_done_again_is_read_again_and_one_that_is_gone_forgotten(run, tmp_path):
    cache = tmp_path / "cache.npz"
    index = open_index(run, cache)
    index.read_all()
    folder = RunFolder(run)
    folder.episode_file(4).unlink()
    folder.episode_file(3).unlink()
    write_step(folder, 3)
    (run / "episodes" / "step-000002.parquet").write_bytes(b"PAR1 half of a file")
    for other in (index, open_index(run, cache)):
        assert [step for step, *_ in rows(other)] == [3] * TURNS + [1] * TURNS
    assert "cannot be read" in index.blocks[2].missing


def test_a_growing_run_is_saved_by_tenths(tmp_path):
    run, cache = write_run(tmp_path / "run", steps=20), tmp_path / "cache.npz"
    index = open_index(run, cache)
    index.read_all()
    saved = cache.stat().st_ino
    for step in (21, 22):
        write_step(RunFolder(run), step)
        index.read_all()
        assert cache.stat().st_ino == saved
    write_step(RunFolder(run), 23)
    index.read_all()
    assert cache.stat().st_ino != saved
    assert len(load_index(cache, KINDS).steps) == 23


def test_a_few_turns_are_not_worth_a_file(run, tmp_path):
    TurnIndex(run / "episodes", cache=tmp_path / "cache.npz").read_all()
    assert not (tmp_path / "cache.npz").exists()


def change(cache: Path, **changed: object) -> None:
    """Write the cache again with other values in its head, or other columns."""
    with np.load(cache) as arrays:
        parts = dict(arrays)
    head = json.loads(bytes(parts["head"]))
    columns = {name: value for name, value in changed.items() if name in parts}
    head |= {name: value for name, value in changed.items() if name not in parts}
    parts |= columns | {"head": np.frombuffer(json.dumps(head).encode(), np.uint8)}
    with cache.open("wb") as file:
        np.savez(file, **parts)


DAMAGES = {
    "cut": lambda cache: cache.write_bytes(cache.read_bytes()[:200]),
    "no archive": lambda cache: cache.write_bytes(b"nothing"),
    "another version": lambda cache: change(cache, version=0),
    "lengths": lambda cache: change(cache, lengths=[8, 8, 8, 9]),
    "numbers of no name": lambda cache: change(cache, names={"agent": ["", "solver"]}),
    "types": lambda cache: change(cache, agent=np.zeros(4 * TURNS, np.int64)),
    "order": lambda cache: change(cache, steps=[1, 2, 3, 4]),
    "no list": lambda cache: change(cache, steps=None),
}


@pytest.mark.parametrize("damaged", DAMAGES)
def test_a_damaged_cache_is_as_good_as_none(run, tmp_path, damaged):
    cache = tmp_path / "cache.npz"
    index = open_index(run, cache)
    index.read_all()
    assert load_index(cache, KINDS) is not None
    DAMAGES[damaged](cache)
    assert load_index(cache, KINDS) is None
    assert rows(open_index(run, cache)) == rows(index)


def test_a_cache_that_is_a_link_is_not_followed(run, tmp_path):
    cache = tmp_path / "cache.npz"
    open_index(run, cache).read_all()
    (tmp_path / "link.npz").symlink_to(cache)
    assert load_index(tmp_path / "link.npz", KINDS) is None


def test_the_cache_lies_outside_of_the_run_and_can_be_impossible(run, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    file = choose_file(run / "episodes")
    assert file.is_relative_to(tmp_path / "home")
    before = sorted(run.rglob("*"))
    index = open_index(run, file)
    index.read_all()
    assert file.is_file()
    assert sorted(run.rglob("*")) == before
    (tmp_path / "file").touch()
    unwritable = open_index(run, tmp_path / "file" / "cache.npz")
    unwritable.read_all()
    assert len(rows(unwritable)) == 4 * TURNS


def test_threads_that_read_at_once_see_each_turn_once(tmp_path):
    run = write_run(tmp_path / "run", steps=30)
    index = TurnIndex(run / "episodes")
    expected = rows(TurnIndex(run / "episodes"))
    results: list[list] = []
    threads = [threading.Thread(target=lambda: results.append(rows(index))) for _ in range(3)]
    index.read_in_background()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [expected] * 3
