"""What programs say of their episodes, and programs that listen at an address of their own."""

from __future__ import annotations

import asyncio
import gc
import json
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager

import httpx
import pytest

from rolecall.core.interfaces.environment import World
from rolecall.core.types import Episode, Task
from rolecall.gateway.outcome import Outcome, read_outcome
from rolecall.gateway.programs import ProgramError, call_url
from rolecall.rewards.posted import note_posted, read_posted
from tests.gateway.doors import address_of, play_program
from tests.layouts import LAYOUTS, tokenizer_of

QWEN = tokenizer_of(LAYOUTS["qwen"])
AGENTS = ("solver", "verifier")
TASK = {"id": "t", "prompt": "2 + 2?"}


@pytest.mark.parametrize(
    ("value", "outcome"),
    [
        (None, Outcome()),
        ("4", Outcome("4")),
        (4, Outcome("4")),
        ({"answer": 4, "reward": 1}, Outcome("4", {"team": 1.0})),
        ({"rewards": {"solver": 1, "team": 0.5}}, Outcome(None, {"solver": 1.0, "team": 0.5})),
    ],
)
def test_an_outcome_is_a_text_a_number_or_fields(value, outcome):
    assert read_outcome(value, AGENTS) == outcome


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"score": 1}, "score: Extra inputs"),
        ({"reward": "much"}, "reward: Input should be a valid number"),
        ({"reward": float("nan")}, "reward: Input should be a finite number"),
        ({"rewards": {"critic": 1}}, "rewards.critic: there is no such agent; name one of team, "),
        ([1], "outcome: Input should be a valid dictionary"),
    ],
)
def test_what_is_no_outcome_is_an_error_that_names_the_field(value, problem):
    with pytest.raises(ValueError, match=problem):
        read_outcome(value, AGENTS)


def test_a_missing_reward_is_an_error_but_for_an_episode_that_was_cut():
    episode = Episode("e", Task("t", "?"), 0, 0)
    with pytest.raises(ValueError, match="the program posted no reward"):
        asyncio.run(read_posted(episode, World()))
    episode.is_truncated = True
    assert asyncio.run(read_posted(episode, World())) == {"team": 0.0}
    note_posted(episode, {"solver": 0.5})
    note_posted(episode, {"solver": 0.25})
    assert asyncio.run(read_posted(episode, World())) == {"solver": 0.25}


def test_rewards_are_posted_to_the_address_of_the_episode():
    async def program(client, session):
        await client.chat.completions.create(
            model="solver", messages=[{"role": "user", "content": "4?"}]
        )
        address = f"{address_of(client)}/rollouts/{session.key}"
        async with httpx.AsyncClient() as plain:
            assert (await plain.post(f"{address}/reward", json={"reward": 0.5})).is_success
            wrong = await plain.post(f"{address}/reward", json={"rewards": {"critic": 1}})
            assert wrong.status_code == 400
            assert "no such agent" in wrong.json()["error"]["message"]
            other = await plain.post(address.replace(session.key, "x") + "/reward", json={})
            assert other.status_code == 404
            await session.close()

    episode = play_program(QWEN, ["a"], program)
    assert episode.metrics["posted/team"] == 0.5


@asynccontextmanager
async def listening(answer: Callable[[dict], Awaitable[tuple[int, bytes]]]):
    """A small HTTP server: `answer` gets the body of each request."""

    async def handle(reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        size = int(head.partition("content-length:")[2].split()[0])
        status, body = await answer(json.loads(await reader.readexactly(size)))
        writer.write(b"HTTP/1.1 %d x\r\ncontent-length: %d\r\n\r\n%b" % (status, len(body), body))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/run"


def call(answer, *, finishes: str | None = None):
    """What `call_url` returns; `finishes`: what the program says a little later."""

    async def main():
        finished = asyncio.get_running_loop().create_future()
        if finishes is not None:
            asyncio.get_running_loop().call_later(0.05, finished.set_result, finishes)
        async with listening(answer) as url:
            return await call_url(url, TASK, finished)

    return asyncio.run(main())


def test_a_program_that_listens_gets_the_task_and_answers_it():
    async def answer(task):
        return 200, json.dumps({"answer": task["prompt"], "reward": 1.0}).encode()

    assert call(answer) == {"answer": "2 + 2?", "reward": 1.0}

    async def nothing(task):
        return 200, b""

    assert call(nothing) is None


def test_a_program_may_say_later_that_it_has_ended():
    async def accept(task):
        return 202, b""

    assert call(accept, finishes="4") == "4"

    async def answer_too_late(task):
        await asyncio.sleep(5)
        return 200, b""

    assert call(answer_too_late, finishes="5") == "5"


def test_an_episode_whose_time_is_over_ends_the_request_to_its_program():
    """An error of the request that nobody reads would be written to the log."""
    unread: list[object] = []

    async def main():
        released = asyncio.Event()

        async def hang(task):
            await released.wait()
            return 200, b""

        loop = asyncio.get_running_loop()

        def note(_, context):
            if "never retrieved" in context["message"]:
                unread.append(context)

        loop.set_exception_handler(note)
        async with listening(hang) as url:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await call_url(url, TASK, loop.create_future())
            released.set()
            await asyncio.sleep(0.1)
            gc.collect()

    asyncio.run(main())
    assert unread == []


@pytest.mark.parametrize(
    ("status", "body", "problem"), [(500, b"no", "status 500: no"), (200, b"{", "no JSON")]
)
def test_a_program_that_fails_is_an_error_of_the_program(status, body, problem):
    async def answer(task):
        return status, body

    with pytest.raises(ProgramError, match=problem):
        call(answer)


def test_an_address_at_which_nobody_listens_is_an_error_of_the_program():
    async def main():
        finished = asyncio.get_running_loop().create_future()
        await call_url("http://127.0.0.1:9/run", TASK, finished)

    with pytest.raises(ProgramError, match="ConnectError"):
        asyncio.run(main())
