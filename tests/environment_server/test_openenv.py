"""Environments are served in OpenEnv's protocol, with an extension for several agents."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from rolecall.environment_server import openenv_app
from tests.environment_server.serving import run, serve_openenv

pytestmark = pytest.mark.slow


class Client:
    """A socket of a session."""

    def __init__(self, socket):
        self.socket = socket

    async def send(self, kind, **data):
        return await self.send_text(json.dumps({"type": kind, "data": data}))

    async def send_text(self, text):
        await self.socket.send(text)
        answer = json.loads(await self.socket.recv(decode=True))
        return answer["data"] | {"type": answer["type"]}


def served(*names, path="", **options):
    """A decorator: run the test with a session of a server of these recipes."""

    def wrap(test):
        def whole():
            async def inside():
                async with (
                    serve_openenv(*names, **options) as url,
                    connect(url.replace("http", "ws") + f"{path}/ws") as socket,
                ):
                    await test(Client(socket), url)

            run(inside)

        whole.__name__, whole.__doc__ = test.__name__, test.__doc__
        return whole

    return wrap


@served("math_alone")
async def test_a_message_that_cannot_be_read_is_an_error_and_the_session_goes_on(client, url):
    assert (await client.send("reset"))["type"] == "observation"
    for text, code in (
        ("[" * 100_000, "INVALID_JSON"),
        ("9" * 5000, "INVALID_JSON"),
        (b"\xff", "INVALID_JSON"),
        ('{"type": []}', "UNKNOWN_TYPE"),
    ):
        assert (await client.send_text(text))["code"] == code
    assert (await client.send("step", message="x"))["done"]


@served("debate")
async def test_an_observation_names_the_agent_and_holds_its_messages(client, url):
    first = await client.send("reset", seed=3)
    assert (first["type"], first["reward"], first["done"]) == ("observation", None, False)
    seen, names = first["observation"], []
    assert seen["agents"] == ["debater_1", "debater_2", "judge"]
    assert [one["agent"] for one in seen["waiting"]] == [seen["agent"]]
    for text in ("It is so.", "It is not.", "<winner>a</winner>"):
        names.append(seen["agent"])
        assert seen["messages"][-1]["role"] == "user"
        answer = await client.send("step", message=text, agent=seen["agent"])
        seen = answer["observation"]
    assert names == ["debater_2", "debater_1", "judge"]
    assert seen["rewards"] == {"debater_1": 1.0, "debater_2": -1.0, "judge": 1.0}
    assert (answer["reward"], answer["done"], seen["waiting"]) == (1.0, True, [])
    state = await client.send("state")
    assert state["step_count"] == 3
    assert (await client.send("reset", seed=3))["observation"] == first["observation"]
    assert (await client.send("state"))["step_count"] == 0


@served("math_alone", "kuhn", path="/kuhn")
async def test_an_environment_has_an_address_of_its_own(client, url):
    seen = (await client.send("reset", seed=3))["observation"]
    assert seen["messages"][-1]["content"].startswith("Kuhn poker.")
    async with httpx.AsyncClient(base_url=url) as http:
        assert (await http.get("/list_environments")).json() == ["math_alone", "kuhn"]
        assert (await http.get("/health")).json() == {"status": "healthy"}
        assert (await http.get("/kuhn/metadata")).json()["agents"] == ["player", "opponent"]
        schema = (await http.get("/kuhn/schema")).json()
        assert schema["action"]["required"] == ["message"]
        splits = (await http.get("/kuhn/splits")).json()
        assert splits == [{"name": n, "type": n} for n in ("train", "test")]
        assert (await http.get("/chess/splits")).status_code == 404


@served("math_alone")
async def test_tasks_are_listed_without_their_answers(client, url):
    async with httpx.AsyncClient(base_url=f"{url}/math_alone") as http:

        async def ask(route, **body):
            answer = await http.post(route, json=body)
            return answer.status_code, answer.json()

        assert await ask("num_tasks", split="test") == (200, {"num_tasks": 600})
        status, body = await ask("task", split="test", index=3)
        assert (status, sorted(body["task"])) == (200, ["id", "prompt", "source"])
        _, several = await ask("task_range", split="test", start=3, stop=5)
        assert several["tasks"][0] == body["task"]
        assert len(several["tasks"]) == 2
        for route, wrong in (
            ("num_tasks", {"split": "dev"}),
            ("task", {"split": "test", "index": 600}),
            ("task", {"split": "test"}),
            ("task_range", {"split": "train"}),
        ):
            assert (await ask(route, **wrong))[0] == 400
        begun = await client.send("reset", split="test", index=3)
        assert begun["observation"]["messages"][-1]["content"] == body["task"]["prompt"]


@served("math_alone")
async def test_an_error_has_its_code_and_the_session_goes_on(client, url):
    async def code(kind, **data):
        answer = await client.send(kind, **data)
        assert answer["type"] == "error"
        return answer["code"], answer["message"]

    assert await code("step", message="x") == (
        "VALIDATION_ERROR", "reset comes before the first step"
    )  # fmt: skip
    assert (await client.send_text("{"))["code"] == "INVALID_JSON"
    assert (await client.send_text("[]"))["code"] == "VALIDATION_ERROR"
    assert await code("jump") == ("UNKNOWN_TYPE", "Unknown message type: jump")
    assert (await code("reset", seed=-1))[0] == "VALIDATION_ERROR"
    assert (await code("reset", split="dev"))[0] == "EXECUTION_ERROR"
    await client.send("reset", seed=3)
    assert (await code("step", massage="x"))[0] == "VALIDATION_ERROR"
    assert await code("step", message="x", agent="verifier") == (
        "VALIDATION_ERROR", "'verifier' is not to act now; to act: solver"
    )  # fmt: skip
    answer = await client.send("step", message="\\boxed{39}")
    assert (answer["reward"], answer["done"]) == (1.0, True)
    assert await code("step", message="x") == (
        "VALIDATION_ERROR", "the episode has ended; reset"
    )  # fmt: skip


def test_who_may_not_ask_and_what_is_not_there():
    async def test():
        async with serve_openenv("math_alone", token="secret") as url:
            address = url.replace("http", "ws")
            for headers in ({}, {"Authorization": "Bearer secreT"}):
                with pytest.raises(InvalidStatus, match="403"):
                    await connect(f"{address}/ws", additional_headers=headers)
            right = {"Authorization": "Bearer secret"}
            with pytest.raises(InvalidStatus, match="403"):
                await connect(f"{address}/ws", additional_headers=right, origin="http://evil.org")
            async with httpx.AsyncClient() as http:
                assert (await http.get(f"{url}/schema")).status_code == 401
            async with connect(f"{address}/maths/ws", additional_headers=right) as socket:
                answer = json.loads(await socket.recv(decode=True))
                assert answer["data"]["code"] == "SESSION_ERROR"
                with pytest.raises(ConnectionClosed):
                    await socket.recv(decode=True)

    run(test)


def test_a_full_server_says_so_and_places_become_free(monkeypatch):
    async def test():
        monkeypatch.setattr(openenv_app, "MOST_SESSIONS", 2)
        async with serve_openenv("math_alone") as url:
            address = url.replace("http", "ws") + "/ws"
            sockets = [await connect(address) for _ in range(3)]
            answer = json.loads(await sockets[2].recv(decode=True))
            assert answer["data"]["code"] == "CAPACITY_REACHED"
            await sockets[0].close()
            await asyncio.sleep(0.1)
            client = Client(await connect(address))
            assert (await client.send("reset", seed=1))["type"] == "observation"
            await client.socket.close()
            await sockets[1].close()

    run(test)
