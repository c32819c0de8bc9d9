"""The reward `remote_model` posts texts to a server and pays the numbers that it answers."""

from __future__ import annotations

import asyncio
import json

import pytest

from rolecall.core.errors import InfrastructureError, RunEndingError
from rolecall.core.interfaces.environment import World
from rolecall.core.types import Episode, Message, Task
from rolecall.rewards.remote_model import RemoteModel
from tests import toy

pytestmark = pytest.mark.slow


def episode() -> Episode:
    turns = [toy.turn(name, path=(number,)) for number, name in enumerate(("ann", "ben"))]
    for turn in turns:
        turn.messages, turn.text = [Message("user", f"{turn.agent}?")], f"<think>1</think>{turn.id}"
    turns[1].trained = False
    return Episode(
        "e", Task("t", "2 + 2?", ["4", "four"]), 0, seed=0, turns=turns, answer="It is 4"
    )


def pay(*replies: tuple[int, object], **options) -> tuple[dict, Episode, list[dict], str]:
    """What is paid by a server that gives these replies, one after the other."""
    asked, waiting = [], list(replies)

    async def serve(reader, writer) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = next(line for line in head.split("\r\n") if line.startswith("content-length"))
        asked.append(json.loads(await reader.readexactly(int(length.split()[1]))))
        status, reply = waiting.pop(0)
        data = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
        head = f"HTTP/1.1 {status} X\r\nContent-Length: {len(data)}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + data)
        await writer.drain()
        writer.close()

    async def go() -> tuple[dict, Episode, list[dict], str]:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/get_reward"
        played = episode()
        async with server:
            return await RemoteModel(url, **options)(played, World()), played, asked, url

    return asyncio.run(go())


def test_an_answer_is_sent_with_its_prompt_and_its_label_and_earns_the_number():
    paid, _, asked, _ = pay((200, {"rewards": [0.5], "scores": [1]}), times=3.0)
    assert paid == {"team": 1.5}
    assert asked == [{"query": ["2 + 2?\n\nIt is 4"], "prompts": ["2 + 2?"], "labels": ["4"]}]


def test_the_trained_actions_of_an_episode_are_one_request():
    paid, played, asked, _ = pay((200, {"rewards": [[-2]]}), scores="actions")
    assert paid == {}
    assert [turn.rewards for turn in played.turns] == [{"remote_model": -2.0}, {}]
    assert asked[0]["query"] == [f"ann?\n\n{played.turns[0].id}"]


def test_what_passes_is_tried_again():
    paid, _, asked, _ = pay((503, {}), (200, {"rewards": [1]}))
    assert (paid, len(asked)) == ({"team": 1.0}, 2)


@pytest.mark.parametrize(
    "reply",
    [(404, b"gone"), (200, b"<html>"), (200, {"rewards": [1, 2]}), (200, {"scores": [1]}),
     (200, {"rewards": ["NaN"]}), (200, [1])],
)  # fmt: skip
def test_a_wrong_answer_ends_the_run_with_one_line_that_names_the_url(reply):
    with pytest.raises(RunEndingError, match=r"http://127\.0\.0\.1:\d+/get_reward") as error:
        pay(reply)
    assert "\n" not in str(error.value)


def test_a_server_that_does_not_answer_is_an_error_of_the_episode():
    url = "http://127.0.0.1:9/get_reward"
    reward = RemoteModel(url, deadline_s=0.2)
    with pytest.raises(InfrastructureError, match=url) as error:
        asyncio.run(reward(episode(), World()))
    assert not isinstance(error.value, RunEndingError)


@pytest.mark.parametrize(
    "options", [{"url": "localhost:5000"}, {"url": "http://h", "timeout_s": 0}]
)
def test_a_wrong_address_or_time_is_refused(options):
    with pytest.raises(ValueError, match=r"is no URL|above 0"):
        RemoteModel(**options)
