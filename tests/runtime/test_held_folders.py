"""Folders that processes hold: who may remove them, and what may stand in their way."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rolecall.runtime.held_folders import LOCK, PREFIX, hold
from rolecall.runtime.own_files import ForeignFileError
from rolecall.runtime.scratch import SHARED, open_scratch_file, scratch_folder, shared_folder
from tests.limits import within

HOLDER = (
    "import pathlib, sys\nfrom rolecall.runtime import scratch\n"
    "scratch.MEMORY = pathlib.Path(sys.argv[1])\nfolder = scratch.scratch_folder(room=10)\n"
    "print(folder.name, flush=True)\nsys.stdin.read()"
)


def test_a_folder_of_shared_memory_ends_with_its_process_or_the_next_one(tmp_path, monkeypatch):
    monkeypatch.setattr("rolecall.runtime.scratch.MEMORY", tmp_path)
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        others = Path(process.stdout.readline().strip())
        # As another container sees it, in whose /proc no process has the number in the name.
        foreign = others.rename(tmp_path / f"{PREFIX}{2**22 + 1}-abc")
        with scratch_folder(room=10) as folder:
            assert Path(folder).parent == tmp_path
            assert foreign.exists()
        assert not Path(folder).exists()
        process.kill()
        process.wait()
        scratch_folder(room=10).cleanup()
        assert not foreign.exists()


@pytest.mark.parametrize("what", ["pipe", "link", "folder"])
def test_what_is_no_lock_of_ours_neither_hangs_nor_ends_a_hand_over(what, tmp_path, monkeypatch):
    monkeypatch.setattr("rolecall.runtime.scratch.MEMORY", tmp_path)
    foreign, target = tmp_path / f"{SHARED}x", tmp_path / "precious"
    foreign.mkdir()
    target.write_text("kept")
    if what == "pipe":
        os.mkfifo(foreign / LOCK)
    elif what == "link":
        (foreign / LOCK).symlink_to(target)
    else:
        (foreign / LOCK).mkdir()
    with within(5.0):
        scratch_folder(room=10).cleanup()
        with pytest.raises(OSError, match="is no regular file"):
            hold(foreign)
    assert foreign.exists()
    assert target.read_text() == "kept"


def test_a_shared_folder_stays_while_a_process_holds_it(tmp_path, monkeypatch):
    monkeypatch.setattr("rolecall.runtime.scratch.MEMORY", tmp_path)
    folder = tmp_path / f"{SHARED}run"
    code = (
        "import pathlib, sys\nfrom rolecall.runtime.scratch import hold\n"
        "hold(pathlib.Path(sys.argv[1]))\nprint('held', flush=True)\nsys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout.readline() == b"held\n"
        (folder / "log").touch()
        scratch_folder(room=1).cleanup()
        assert (folder / "log").exists()
        process.kill()
        process.wait()
        scratch_folder(room=1).cleanup()
        assert not folder.exists()


def test_a_file_is_opened_only_in_a_scratch_folder_of_ours(tmp_path, monkeypatch):
    monkeypatch.setattr("rolecall.runtime.scratch.MEMORY", tmp_path)
    outside = tmp_path / "precious"
    outside.write_bytes(b"12345678")
    with scratch_folder(room=10) as folder:
        weights, link = Path(folder) / "weights", Path(folder) / "link"
        weights.write_bytes(b"12345678")
        link.symlink_to(outside)
        with open_scratch_file(weights, size=8) as opened:
            assert opened.read() == b"12345678"
        for wrong, size in ((outside, 8), (link, 8), (weights, 9), (weights / "../../precious", 8)):
            with pytest.raises(OSError, match=r"scratch folder|regular file|bytes and not"):
                open_scratch_file(wrong, size=size)
    assert outside.read_bytes() == b"12345678"
    assert issubclass(ForeignFileError, OSError)


def test_nobody_else_reads_weights_in_shared_folders_and_folders_of_ranks(tmp_path, monkeypatch):
    monkeypatch.setattr("rolecall.runtime.scratch.MEMORY", tmp_path)
    shared = shared_folder(f"{SHARED}run", "a", room=1)
    with scratch_folder(room=1) as scratch:
        for folder in (shared, shared.parent, Path(scratch)):
            assert folder.stat().st_mode & 0o077 == 0
