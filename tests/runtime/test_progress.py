"""What takes long says what it does and how far it is, in a terminal and without one."""

from __future__ import annotations

import asyncio
import io
import time

from rolecall.rollout.collection import collect
from rolecall.runtime import progress
from rolecall.runtime.consoles import PlainConsole
from rolecall.runtime.progress import Activity, _board, activity, presented_by
from tests.test_rollout import context, tasks


def test_nothing_short_is_shown_and_what_is_long_ever_more_seldom(capsys):
    now = Activity("evaluation on test", total=1680, unit="attempts", done=120)
    printed = []
    for seconds in range(121):
        now.started = time.monotonic() - seconds
        _board._show([now] if now.seconds >= progress.SHOWN_AFTER else [])
        if error := capsys.readouterr().err:
            printed.append((seconds, error))
    assert printed[0] == (3, "evaluation on test: 120 of 1680 attempts, 0:00:03\n")
    assert [seconds for seconds, _ in printed] == [3, 10, 20, 40, 80]
    assert Activity("loading models").line() == "loading models: 0:00:00"


def test_a_terminal_gets_one_line_that_goes_before_anything_else_is_printed(monkeypatch):
    terminal, out = io.StringIO(), io.StringIO()

    def console(**options):
        if options.pop("stderr", False):
            return PlainConsole(file=terminal, force_terminal=True, width=60, **options)
        return PlainConsole(file=out, width=60, **options)

    monkeypatch.setattr(progress, "PlainConsole", console)
    now = Activity("step 3: playing", 64, "attempts", done=5)
    _board._show([now])
    now.done = 6
    _board._show([now])
    assert "step 3: playing: 6 of 64 attempts" in terminal.getvalue()
    assert _board._live is not None
    console().print("a line")
    assert _board._live is None
    assert terminal.getvalue().endswith("\x1b[2K")  # the line is erased


def test_a_collection_counts_its_attempts(model_folder, monkeypatch):
    monkeypatch.setattr(progress, "SHOWN_AFTER", 0.0)
    monkeypatch.setattr(progress, "TICK_S", 0.001)
    seen: list[str] = []
    with presented_by(lambda lines: seen.extend(lines)):
        playing = collect(context(model_folder), tasks(6), step=2, group_size=4)
        asyncio.run(playing)
        with activity("something after"):
            time.sleep(0.05)
    counts = [line for line in seen if line.startswith("step 2: playing: ")]
    assert counts
    assert all(" of 24 attempts, 0:00:0" in line for line in counts)
    assert "something after: 0:00:00" in seen
    assert not _board.running
