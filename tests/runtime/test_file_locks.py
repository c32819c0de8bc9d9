"""A lock that another process holds is waited for, in words, and not for ever."""

from __future__ import annotations

import ast
import fcntl
import os
import subprocess
import sys
import time

import pytest

from rolecall.models.cpu import product_trials
from rolecall.runtime import file_locks
from rolecall.runtime.file_locks import LockHeldError, locked_file
from tests.limits import within
from tests.sources import source_files

HOLD = (
    "import fcntl, sys\nfile = open(sys.argv[1], 'w')\nfcntl.flock(file, fcntl.LOCK_EX)\n"
    "print('held', flush=True)\nsys.stdin.read()"
)


@pytest.fixture
def held(tmp_path):
    file = tmp_path / "rolecall" / "products.lock"
    file.parent.mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout.readline() == b"held\n"
        yield file
        holder.kill()


def test_a_lock_is_waited_for_with_a_line_and_a_limit(held, monkeypatch):
    monkeypatch.setattr(file_locks, "SAY_S", 0.1)
    lines, began = [], time.monotonic()
    wrong = pytest.raises(LockHeldError, match=r"another process has held .*lock for 0.5 s")
    with wrong, locked_file(held, wait_s=0.5, say=lines.append):
        pass
    assert 0.5 <= time.monotonic() - began < 5
    [line] = lines
    assert line == f"waiting for {held}, which another process holds, for 0.5 s at most"


def test_whoever_holds_the_products_does_not_stop_a_run(held, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(product_trials, "_known", {})
    monkeypatch.setattr(product_trials, "_told", set())
    monkeypatch.setattr(product_trials, "WAIT_S", 1.0)
    with within(10):
        for size in (64, 32, 16, 8, 4, 2):  # one waits for all
            assert product_trials.ways_of_training(size, 32) == product_trials.PLAIN
    waiting, given_up = caplog.messages[0], caplog.messages[1]
    assert waiting.startswith("waiting for ")
    assert given_up.startswith("products are not tried, the plain ones are used: another process")


def test_a_lock_is_had_when_it_is_given_back(tmp_path):
    file = tmp_path / "lock"
    for _ in range(2):
        refused = pytest.raises(BlockingIOError)
        with locked_file(file, wait_s=0.0), file.open("a") as other, refused:
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.parametrize("what", ["pipe", "link"])
def test_a_pipe_or_a_link_in_place_of_a_lock_is_an_error_at_once(what, tmp_path):
    file = tmp_path / "lock"
    os.mkfifo(file) if what == "pipe" else file.symlink_to(tmp_path / "elsewhere")
    with within(5), pytest.raises(OSError, match="is no regular file"), locked_file(file, wait_s=9):
        pass
    assert not (tmp_path / "elsewhere").exists()


def test_no_lock_is_waited_for_without_a_limit_and_no_process_signalled_past_the_guard():
    """`fcntl.flock` without LOCK_NB or LOCK_SH waits for whoever holds it; `os.kill` takes 0."""
    wrong = []
    for _, file in source_files():
        if "inside" in file.parts:  # in the sandbox, with a namespace of its own
            continue
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.Call):
                continue
            called, text = ast.unparse(node.func), ast.unparse(node)
            if called == "fcntl.flock" and not any(
                allowed in text for allowed in ("LOCK_NB", "LOCK_SH", "LOCK_UN")
            ):
                wrong.append(f"{file.name}: {text}")
            if called == "os.kill" and file.name != "signals.py" and "os.getpid()" not in text:
                wrong.append(f"{file.name}: {text}")
    assert wrong == []
