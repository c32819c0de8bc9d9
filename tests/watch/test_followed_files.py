"""What the server follows of a run that another process trains: its lock, metrics and tokens."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from rolecall.storage.run_folder import RunFolder
from rolecall.watch.one_run import JournalCounter, answer_changes, answer_run
from rolecall.watch.run_list import Rows
from rolecall.watch.runs import Runs, WatchedRun
from rolecall.watch.series import SeriesReader
from rolecall.watch.sketch import sketch_metrics
from rolecall.watch.status import holds_lock, judge_status
from rolecall.watch.texts import decode_each, write_tokens


def test_a_run_is_running_while_its_trainer_holds_the_lock(tmp_path):
    run = RunFolder(tmp_path)
    with run.lock():
        assert judge_status(tmp_path, step=1, steps=3) == "running"
    assert judge_status(tmp_path, step=0, steps=3) == "not started"
    assert judge_status(tmp_path, step=1, steps=3) == "stopped"
    assert judge_status(tmp_path, step=3, steps=3) == "finished"


def test_a_lock_of_a_process_that_has_ended_or_does_other_things_holds_nothing(tmp_path):
    lock = tmp_path / ".lock"
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    for text in (f"process {ended.pid}\n", f"process {os.getpid()}\n", "\0\xff", "process x", ""):
        lock.write_text(text)
        assert not holds_lock(lock)
    assert not holds_lock(tmp_path / "none")


def test_looking_at_a_lock_keeps_no_trainer_from_starting(tmp_path):
    run = RunFolder(tmp_path)
    with run.lock():
        pass
    holds_lock(tmp_path / ".lock")
    with run.lock():
        assert holds_lock(tmp_path / ".lock")


def line(step: int, **values: object) -> str:
    return json.dumps({"kind": "step", "step": step, **values}) + "\n"


def test_a_rewritten_file_of_the_same_inode_begins_a_new_generation(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text("".join(line(n, score=n / 10) for n in range(1, 5)))
    reader = SeriesReader(file)
    reader.refresh()
    cursor, inode = reader.cursor, file.stat().st_ino
    with file.open("r+") as opened:
        opened.truncate()
        opened.write("".join(line(n, score=n / 100) for n in range(1, 9)))
    assert file.stat().st_ino == inode
    metrics = reader.refresh()
    assert metrics.steps == [*range(1, 9)]
    assert reader.rows_before(cursor) is None
    assert metrics.values("score")[:2] == [0.01, 0.02]


def test_answers_that_are_made_at_once_hold_whole_steps_and_each_once(tmp_path):
    """Steps with series of their own are appended meanwhile."""
    run = WatchedRun("run", tmp_path)
    (tmp_path / "metrics.jsonl").write_text(line(1, score=0.5))
    ended, wrong = threading.Event(), list[str]()

    def follow() -> None:
        rows, journal = Rows(), JournalCounter()
        while not ended.is_set():
            whole = answer_run(run, rows)
            changes = answer_changes(run, whole.cursor, journal)
            lengths = {len(values) for values in whole.series.values()}
            if lengths != {len(whole.steps)}:
                wrong.append(f"{lengths} values of {len(whole.steps)} steps")
            if changes.steps and changes.steps[0] != whole.steps[-1] + 1:
                wrong.append(f"step {changes.steps[0]} after {whole.steps[-1]}")

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(3) as pool:
            following = [pool.submit(follow) for _ in range(3)]
            with (tmp_path / "metrics.jsonl").open("a") as file:
                for step in range(2, 300):
                    file.write(line(step, score=0.5, **{f"new/{step}": 1.0}))
                    file.flush()
                    time.sleep(0.002)
            ended.set()
            for one in following:
                one.result()
    finally:
        sys.setswitchinterval(before)
    assert wrong == []


@pytest.mark.parametrize("cursor", ["", "1", "x:y", "1:-1", "99:0", "1:٣"])
def test_text_that_is_no_cursor_asks_for_everything(tmp_path, cursor):
    file = tmp_path / "metrics.jsonl"
    file.write_text(line(1))
    reader = SeriesReader(file)
    reader.refresh()
    assert reader.rows_before(cursor) is None


def test_damaged_lines_and_numbers_that_are_none_are_left_out(tmp_path):
    file = tmp_path / "metrics.jsonl"
    odd = [
        "not json\n", "[]\n", "{}\n", '{"kind": 3, "step": 1}\n', '{"kind": "step"}\n',
        '{"kind": "step", "step": 1e999}\n', "[" * 100_000 + "\n", "\xff\n",
    ]  # fmt: skip
    good = [line(1, a=float("nan"), b=float("inf"), c="text", d=10**400, e=True, f=1), line(2, f=2)]
    file.write_text("".join([*odd, *good]), encoding="latin-1")
    metrics = SeriesReader(file).refresh()
    assert (metrics.steps, metrics.damaged) == ([1, 2], len(odd))
    assert {name: metrics.values(name) for name in metrics.columns} == {"f": [1.0, 2.0]}


def test_a_long_file_is_sketched_without_reading_it_whole(tmp_path):
    file = tmp_path / "metrics.jsonl"
    steps = 3000
    file.write_text("".join(line(n, score=n / steps, pad="x" * 500) for n in range(1, steps + 1)))
    sketch = sketch_metrics(file)
    assert (sketch.step, sketch.score) == (steps, 1.0)
    assert 50 <= len(sketch.scores) <= 60
    assert sketch.scores == sorted(sketch.scores)
    assert sketch.scores[0] < 0.05


def byte_tokenizer() -> Tokenizer:
    """A token for each byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({sign: n for n, sign in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


@pytest.mark.parametrize("text", ["abc", "naïve", "€ 5", "a🙂b", "日本語", "\u202eabc\x1b["])
def test_the_texts_of_tokens_make_the_text(text):
    tokenizer = byte_tokenizer()
    ids = tokenizer.encode(text).ids
    texts = decode_each(tokenizer, ids)
    assert len(texts) == len(ids)
    assert "".join(texts) == text


def test_half_of_a_character_at_the_end_is_shown_as_one_sign():
    tokenizer = byte_tokenizer()
    assert decode_each(tokenizer, tokenizer.encode("a€").ids[:-1]) == ["a", "", "�"]


def test_without_a_tokenizer_ids_are_shown(tmp_path):
    run = WatchedRun("run", tmp_path)
    texts, note = write_tokens(run, "small", [5, 6])
    assert (texts, "ids are shown" in note) == (["5", "6"], True)
    folder = tmp_path / "checkpoints" / "step-1" / "small"
    folder.mkdir(parents=True)
    (folder / "tokenizer.json").write_text("{")
    texts, note = write_tokens(run, "small", [5, 6])
    assert (texts, "cannot be read" in note) == (["5", "6"], True)


def test_runs_are_named_by_their_folders_each_once(tmp_path):
    for name in ("a", "deep/b", "1/2/3/4", "1/2/3/4/5", "staged/first", "other/x/a"):
        (tmp_path / "one" / name).mkdir(parents=True, exist_ok=True)
    for name in ("a", "deep/b", "1/2/3/4", "staged/first"):
        (tmp_path / "one" / name / "config.yaml").touch()
    (tmp_path / "one" / "loop").symlink_to(tmp_path / "one")
    (tmp_path / "two" / "a").mkdir(parents=True)
    (tmp_path / "two" / "a" / "metrics.jsonl").touch()
    (tmp_path / "one" / "1/2/3/3/3/deepest/episodes").mkdir(parents=True)
    below = tmp_path / "one" / "1/2/3/3"
    runs = Runs([tmp_path / "one", tmp_path / "two", tmp_path / "one" / "a", below])
    names = [run.name for run in runs.list_all()]
    assert names == ["1/2/3/4", "3/deepest", "a", "deep/b", "staged/first", "two/a"]
    assert runs.find("two/a").path == tmp_path / "two" / "a"
