"""What takes long says what it does and how far it is, in a terminal and without one."""

from __future__ import annotations

import asyncio
import gc
import io
import threading
import time

import pytest

from rolecall.rollout.group_player import Collection, collect
from rolecall.runtime import consoles, progress
from rolecall.runtime.consoles import PlainConsole
from rolecall.runtime.progress import Activity, Board, activity, present_with, track
from tests.rollout.test_rollout import context, tasks


def test_nothing_short_is_shown_and_what_is_long_ever_more_seldom(capsys):
    now = Activity("evaluation on test", total=1680, unit="attempts", done=120)
    printed = []
    for seconds in range(121):
        now.started = time.monotonic() - seconds
        progress._board.show([now] if now.seconds >= progress.SHOWN_AFTER else [])
        if error := capsys.readouterr().err:
            printed.append((seconds, error))
    assert printed[0] == (3, "evaluation on test: 120 of 1680 attempts, 0:00:03\n")
    assert [seconds for seconds, _ in printed] == [3, 10, 20, 40, 80]
    assert Activity("loading models").line() == "loading models: 0:00:00"


def test_a_terminal_gets_one_line_that_goes_before_anything_else_is_printed(monkeypatch):
    terminal, out = io.StringIO(), io.StringIO()
    board = Board(lambda: PlainConsole(file=terminal, force_terminal=True, width=60))
    monkeypatch.setattr(consoles, "before_print", [board.clear])
    now = Activity("step 3: playing", 64, "attempts", done=5)
    board.show([now])
    now.done = 6
    board.show([now])
    assert "step 3: playing: 6 of 64 attempts" in terminal.getvalue()
    assert "\x1b[1A" not in terminal.getvalue()  # the first line was replaced where it stands
    PlainConsole(file=out, width=60).print("a line")
    assert terminal.getvalue().endswith("\x1b[2K")  # the line is erased
    assert out.getvalue() == "a line\n"


def test_a_line_that_is_wider_than_the_terminal_is_cut_and_does_not_wrap(monkeypatch):
    terminal = io.StringIO()
    board = Board(lambda: PlainConsole(file=terminal, force_terminal=True, width=40))
    monkeypatch.setattr(consoles, "before_print", [board.clear])
    board.show([Activity("measuring what batches keep for their backward pass")])
    assert "measuring what batches keep for their b\u2026" in terminal.getvalue()
    assert "\n" not in terminal.getvalue()
    board.clear()


def test_a_collection_counts_its_attempts(model_folder, monkeypatch):
    monkeypatch.setattr(progress, "SHOWN_AFTER", 0.0)
    monkeypatch.setattr(progress, "_board", Board())
    seen: list[str] = []

    async def play() -> None:
        playing = asyncio.create_task(
            collect(context(model_folder), tasks(6), step=2, group_size=4)
        )
        while not playing.done():
            await asyncio.sleep(0)
            progress._board.refresh()

    with present_with(seen.extend):
        asyncio.run(play())
    assert "step 2: playing: 0 of 24 attempts, 0:00:00" in seen
    assert any(not line.startswith("step 2: playing: 0 of ") for line in seen)
    assert all(" of 24 attempts, 0:00:" in line for line in seen)
    assert not progress._board.running


def test_a_thread_follows_what_is_being_done(monkeypatch):
    monkeypatch.setattr(progress, "SHOWN_AFTER", 0.0)
    monkeypatch.setattr(progress, "TICK_S", 0.001)
    monkeypatch.setattr(progress, "_board", Board())  # whose thread is not in a longer pause
    is_shown = threading.Event()
    with present_with(lambda lines: is_shown.set()), activity("something"):
        assert is_shown.wait(60)


def test_a_collection_that_is_abandoned_is_shown_no_more(model_folder):
    """Neither where its workers are cancelled with their loop nor where the loop just stops."""

    async def abandon() -> None:
        Collection(context(model_folder), tasks(6), step=2, group_size=4)
        await asyncio.sleep(0)
        assert [one.label for one in progress._board.running] == ["step 2: playing"]

    asyncio.run(abandon())
    assert not progress._board.running
    loop = asyncio.new_event_loop()
    loop.run_until_complete(abandon())
    asyncio.all_tasks(loop)
    loop.close()
    gc.collect()
    assert not progress._board.running


def test_a_collection_whose_worker_fails_is_shown_no_more(model_folder):
    async def fail() -> None:
        playing = Collection(context(model_folder), tasks(2), step=2, group_size=2)

        async def attempted(task: object, attempt: int) -> None:
            raise RuntimeError("the run ends here")

        playing._attempted = attempted  # type: ignore[method-assign]
        await playing.wait()

    with pytest.raises(RuntimeError, match="the run ends here"):
        asyncio.run(fail())
    assert not progress._board.running


def test_an_activity_that_nobody_holds_is_shown_no_more():
    board = Board()
    board.begin(Activity("left behind"))
    assert board.running == []


def test_what_is_made_one_by_one_is_shown_only_while_it_is_made():
    shown: list[list[str]] = []

    def made():
        for number in range(3):
            shown.append([one.line() for one in progress._board.running])
            yield number

    for number in track(made(), "proofs", total=3):
        assert not progress._board.running
        if number == 1:
            break
    assert shown == [["proofs: 0 of 3, 0:00:00"], ["proofs: 1 of 3, 0:00:00"]]
    assert not progress._board.running
