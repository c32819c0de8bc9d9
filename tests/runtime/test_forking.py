"""A fork server imports once what its forks need, and each connection has a fork of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest

from rolecall.runtime.forking.client import ForkEndedError, ForkServer, PreloadError, PythonError
from tests.support.processes import is_alive

SCRIPT = """
import json, os, sys
COUNT = []

def preload(word):
    COUNT.append(os.getpid())
    return "the word is bad" if word == "bad" else ""

def serve(stream, word):
    for line in stream:
        COUNT.append(line)
        if json.loads(line) == "end":
            return
        stream.write(json.dumps([word, len(COUNT), COUNT[0], os.getpid()]) + "\\n")
        stream.flush()
"""


def make_server(folder: Path, word: str = "hello", *, script: str = SCRIPT, **options):
    file = folder / "echo_script.py"
    file.write_text(script)
    return ForkServer(file, [word], label="the echo", **options)


def use(server: ForkServer, work):
    async def main():
        try:
            return await work()
        finally:
            await server.close()

    return asyncio.run(main())


def test_forks_begin_alike_and_share_nothing(tmp_path):
    server = make_server(tmp_path)

    async def work():
        forks = await asyncio.gather(*(server.connect() for _ in range(4)))
        answers = []
        for number, fork in enumerate(forks):
            for _ in range(number + 1):
                fork.send("more")
                answer = await fork.receive()
            answers.append(answer)
            fork.kill()
        return answers

    answers = use(server, work)
    assert [answer[:2] for answer in answers] == [["hello", 2], ["hello", 3], ["hello", 4],
                                                  ["hello", 5]]  # fmt: skip
    assert len({answer[2] for answer in answers}) == 1
    assert len({answer[3] for answer in answers}) == 4


def test_a_fork_that_ends_without_an_answer_is_an_error(tmp_path):
    server = make_server(tmp_path)

    async def work():
        fork = await server.connect()
        fork.send("end")
        with pytest.raises(ForkEndedError):
            await fork.receive()
        fork.kill()

    use(server, work)


@pytest.mark.parametrize(
    ("options", "error", "line"),
    [
        ({"word": "bad"}, PreloadError, "the word is bad"),
        ({"script": "raise OSError('no disk')"}, PreloadError, "ended before .* no disk"),
        ({"python": "no-python"}, PythonError, "'no-python' cannot be run: No such file"),
        ({"python": "/bin/true"}, PreloadError, "/bin/true ended before it could run the echo"),
    ],
)
def test_a_server_that_cannot_start_says_why_each_time(tmp_path, options, error, line):
    server = make_server(tmp_path, **options)

    async def work():
        for _ in range(2):
            with pytest.raises(error, match=line):
                await server.connect()

    use(server, work)


def test_a_server_that_was_killed_is_started_again(tmp_path):
    server = make_server(tmp_path)

    async def work():
        parents = []
        for _ in range(2):
            fork = await server.connect()
            fork.send("hello")
            parents.append((await fork.receive())[2])
            fork.kill()
            os.kill(parents[-1], signal.SIGKILL)
            while Path(f"/proc/{parents[-1]}/cmdline").exists() and server._process.poll() is None:
                await asyncio.sleep(0.01)
        return parents

    first, second = use(server, work)
    assert first != second


def test_a_server_can_be_closed_in_another_event_loop(tmp_path):
    server = make_server(tmp_path)

    async def begin():
        fork = await server.connect()
        fork.send("hello")
        return await fork.receive()

    _, _, parent, child = asyncio.run(begin())
    asyncio.run(server.close())
    until = time.monotonic() + 10
    while any(is_alive(pid) for pid in (parent, child)):
        assert time.monotonic() < until
        time.sleep(0.02)
