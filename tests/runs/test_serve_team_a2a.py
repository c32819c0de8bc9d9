"""A trained team answers the unmodified client of A2A's SDK as an agent."""

from __future__ import annotations

import asyncio
import socket
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import httpx
import pytest
import uvicorn

import rolecall
from rolecall import workflow
from rolecall.runs.serve_team import ServedTeam, make_team_app
from rolecall.serve.binding import settings
from tests.toy import relay_config

pytest.importorskip("a2a", reason="a2a-sdk is not installed")
from a2a.client import ClientConfig, create_client
from a2a.client.errors import A2AClientError
from a2a.helpers import get_artifact_text, get_message_text, new_text_message
from a2a.server.context import ServerCallContext
from a2a.server.request_handlers import DefaultRequestHandler
from a2a.types import (
    CancelTaskRequest,
    GetTaskRequest,
    Role,
    SendMessageRequest,
    Task,
    TaskState,
    TaskStatus,
)
from a2a.utils.errors import TaskNotCancelableError, UnsupportedOperationError

from rolecall.gateway.agent2agent.executor import TeamExecutor
from rolecall.gateway.agent2agent.routes import make_card
from rolecall.gateway.agent2agent.tasks import NewestTasks

pytestmark = pytest.mark.slow
KEY = {"authorization": "Bearer key"}
CARD = "/.well-known/agent-card.json"
COMPLETED = TaskState.TASK_STATE_COMPLETED


@workflow
async def wait_for_file(team, task, world):
    """The agents speak; then the answer repeats the question, when the file that it names exists.

    The questions of the training are one letter, and are answered by the last agent.
    """
    spoken = [await member(task.prompt) for member in (team.left, team.right, team.last)]
    if len(task.prompt) == 1:
        return spoken[-1]
    word = task.prompt.split()[-1]
    if word == "fail":
        raise ValueError("no such question")
    while word.startswith("/") and not Path(word).exists():
        await asyncio.sleep(0.01)
    return f"<{task.prompt}>"


@pytest.fixture(scope="module")
def run(model_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("served") / "run"
    config = relay_config(model_folder, workflow=f"{Path(__file__).resolve()}:wait_for_file")
    rolecall.train(config, output=folder, trainer={"steps": 1})
    return folder


@asynccontextmanager
async def serving(run):
    """The address at which the team of a run answers."""
    with rolecall.Team.load(run) as team:
        app = make_team_app(ServedTeam(team, name="repeater"), token="key", local=True)
        server = uvicorn.Server(settings(app, log_config=None, lifespan="off"))
        listener = socket.create_server(("127.0.0.1", 0))
        task = asyncio.ensure_future(server.serve([listener]))
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        await task


@asynccontextmanager
async def client_of(run, *, headers=KEY, **options):
    """A client of the team of a run, which has read its card."""
    async with serving(run) as address, httpx.AsyncClient(headers=headers, timeout=60) as http:
        yield await create_client(address, ClientConfig(httpx_client=http, **options))


def message(text, metadata=None, **fields):
    return SendMessageRequest(
        message=new_text_message(text, role=Role.ROLE_USER, **fields), metadata=metadata
    )


async def send(client, text, metadata=None, **fields):
    """The task of a message, from a client that does not stream."""
    [event] = [event async for event in client.send_message(message(text, metadata, **fields))]
    return event.task


async def ended(client, id):
    """A task when it is under way no more."""
    for _ in range(1000):
        task = await client.get_task(GetTaskRequest(id=id))
        if task.status.state not in (
            TaskState.TASK_STATE_SUBMITTED, TaskState.TASK_STATE_WORKING
        ):  # fmt: skip
            return task
        await asyncio.sleep(0.02)
    raise TimeoutError(f"the task {id} does not end")


def texts(task):
    return {artifact.name: get_artifact_text(artifact) for artifact in task.artifacts}


def test_a_message_is_a_task_with_the_answer_as_its_artifact(run):
    async def main():
        async with client_of(run, streaming=False) as client:
            task = await send(client, "abc")
            assert (task.status.state, texts(task)) == (COMPLETED, {"answer": "<abc>"})
            assert task.artifacts[0].metadata["sampled_tokens"] > 0
            assert await client.get_task(GetTaskRequest(id=task.id)) == task
            shown = [
                texts(await send(client, "abc", {"show_conversation": True, "seed": seed}))
                for seed in (7, 7, 8)
            ]
            assert shown[0]["conversation"].startswith("[left]\n")
            assert shown[0] == shown[1] != shown[2]

    asyncio.run(main())


def test_a_stream_yields_the_status_and_the_answer(run):
    async def main():
        async with client_of(run) as client:
            first, working, answer, last = [
                event async for event in client.send_message(message("abc"))
            ]
            assert first.task.status.state == TaskState.TASK_STATE_SUBMITTED
            assert working.status_update.status.state == TaskState.TASK_STATE_WORKING
            assert get_artifact_text(answer.artifact_update.artifact) == "<abc>"
            assert last.status_update.status.state == COMPLETED

    asyncio.run(main())


def test_a_context_is_one_conversation(run):
    async def main():
        async with client_of(run, streaming=False) as client:
            first = await send(client, "2 + 2?")
            await send(client, "fail", context_id=first.context_id)
            await send(client, "of another context")
            second = await send(client, "Sure?", context_id=first.context_id)
            conversation = "[user]\n2 + 2?\n\n[assistant]\n<2 + 2?>\n\n[user]\nSure?"
            assert texts(second) == {"answer": f"<{conversation}>"}
            assert second.context_id == first.context_id

    asyncio.run(main())


def test_a_team_that_fails_says_why_in_its_task(run):
    async def main():
        async with client_of(run, streaming=False) as client:
            task = await send(client, "fail")
            assert task.status.state == TaskState.TASK_STATE_FAILED
            assert "no such question" in get_message_text(task.status.message)

    asyncio.run(main())


def test_messages_are_answered_beside_one_another(run, tmp_path):
    async def main():
        door = tmp_path / "door"
        async with client_of(run, streaming=False, polling=True) as client:
            tasks = [await send(client, f"{name} {door}") for name in "ab"]
            with pytest.raises(UnsupportedOperationError, match="a task of its own"):
                await send(client, "and now?", task_id=tasks[0].id)
            door.touch()
            answers = [texts(await ended(client, task.id)) for task in tasks]
            assert answers == [{"answer": f"<{name} {door}>"} for name in "ab"]

    asyncio.run(main())


def test_a_cancelled_task_holds_nobody_up(run, tmp_path):
    async def main():
        async with client_of(run, streaming=False, polling=True) as client:
            waiting = await send(client, f"abc {tmp_path / 'never'}")
            task = await client.cancel_task(CancelTaskRequest(id=waiting.id))
            assert task.status.state == TaskState.TASK_STATE_CANCELED
            after = await send(client, "abc")  # agents speak when all other episodes wait or end
            assert texts(await ended(client, after.id)) == {"answer": "<abc>"}
            for id in (waiting.id, after.id):
                with pytest.raises(TaskNotCancelableError):
                    await client.cancel_task(CancelTaskRequest(id=id))

    asyncio.run(main())


def test_a_client_that_leaves_reads_the_answer_later(run, tmp_path):
    async def main():
        door = tmp_path / "door"
        async with client_of(run) as client:
            async with aclosing(client.send_message(message(f"abc {door}"))) as events:
                id = (await anext(events)).task.id
            door.touch()
            assert texts(await ended(client, id)) == {"answer": f"<abc {door}>"}

    asyncio.run(main())


def body(method, message=None, **params):
    if message is not None:
        params["message"] = {"messageId": "1", "role": "ROLE_USER"} | message
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


def test_what_cannot_be_answered_has_the_codes_of_the_protocol(run):
    text = {"parts": [{"text": "abc"}]}
    wrong = [
        (body("NoMethod"), -32601),
        (body("SendMessage", configuration=5), -32602),
        (body("SendMessage"), -32602),
        (body("SendMessage", {"parts": []}), -32602),
        (body("SendMessage", {"parts": [{"text": " "}]}), -32602),
        (body("SendStreamingMessage", {"parts": [{"text": " "}]}), -32602),
        (body("SendMessage", text | {"role": "ROLE_AGENT"}), -32602),
        (body("SendMessage", text, metadata={"temperature": "hot"}), -32602),
        (body("SendMessage", text, metadata={"seed": 0.5}), -32602),
        (body("SendMessage", {"parts": [{"text": "abc"}, {"raw": "YQ=="}]}), -32005),
        (body("SendMessage", {"parts": [{"data": {"a": 1}}]}), -32005),
        (body("SendMessage", text | {"taskId": "none"}), -32001),
        (body("GetTask", id="none"), -32001),
        (body("CancelTask", id="none"), -32001),
        ({"id": 1, "method": "GetTask"}, -32600),
    ]

    async def main():
        async with serving(run) as address, httpx.AsyncClient(headers=KEY, timeout=60) as http:
            ask = f"{address}/a2a"
            for request, code in wrong:
                answer = await http.post(ask, json=request, headers={"a2a-version": "1.0"})
                assert answer.json()["error"]["code"] == code, (request, answer.text)
            answer = await http.post(ask, content=b"{", headers={"content-type": "text/json+json"})
            assert answer.json()["error"]["code"] == -32700

    asyncio.run(main())


def test_clients_of_the_version_before_are_answered_at_the_same_address(run):
    parts = [{"kind": "text", "text": "abc"}]
    old = {"kind": "message", "role": "user", "messageId": "1", "parts": parts}

    async def main():
        async with serving(run) as address, httpx.AsyncClient(headers=KEY, timeout=60) as http:
            answer = await http.post(f"{address}/a2a", json=body("message/send", old))
            task = answer.json()["result"]
            assert task["status"]["state"] == "completed"
            assert task["artifacts"][0]["parts"] == [{"kind": "text", "text": "<abc>"}]
            answer = await http.post(f"{address}/a2a", json=body("tasks/get", id=task["id"]))
            assert answer.json()["result"] == task

    asyncio.run(main())


def test_the_guard_holds_for_messages_and_for_the_card(run):
    async def main():
        async with client_of(run, headers={}) as client:  # the card is open
            with pytest.raises(A2AClientError, match="401"):
                [event async for event in client.send_message(message("abc"))]
        async with serving(run) as address, httpx.AsyncClient(headers=KEY) as http:
            card = (await http.get(address + CARD)).json()
            assert card["supportedInterfaces"][0]["url"] == f"{address}/a2a"
            assert card["securityRequirements"] == [{"schemes": {"token": {}}}]
            for headers in ({"host": "example.com"}, {"origin": "http://example.com"}):
                assert (await http.get(address + CARD, headers=headers)).status_code == 403
                answer = await http.post(f"{address}/a2a", json=body("GetTask"), headers=headers)
                assert (answer.status_code, answer.json()["error"]["code"]) == (403, -32000)

    asyncio.run(main())


def test_a_task_too_many_is_rejected(run):
    async def main():
        with rolecall.Team.load(run) as team:
            tasks = NewestTasks()
            executor = TeamExecutor(ServedTeam(team, name="repeater"), tasks, most=0)
            card = make_card("repeater", "http://127.0.0.1/a2a", has_token=False)
            handler = DefaultRequestHandler(executor, tasks, card)
            task = await handler.on_message_send(message("abc"), ServerCallContext())
            assert task.status.state == TaskState.TASK_STATE_REJECTED
            assert "try again" in get_message_text(task.status.message)

    asyncio.run(main())


def test_the_newest_tasks_that_have_ended_are_kept():
    context = ServerCallContext()

    async def save_and_list(tasks, sizes):
        await tasks.save(Task(id="under way"), context)
        for number, size in enumerate(sizes):
            task = Task(id=str(number), status=TaskStatus(state=COMPLETED), context_id="c" * size)
            await tasks.save(task, context)
        names = ["under way", *map(str, range(len(sizes)))]
        return [name for name in names if await tasks.get(name, context) is not None]

    few = asyncio.run(save_and_list(NewestTasks(most_tasks=2), [1, 1, 1]))
    assert few == ["under way", "1", "2"]
    small = asyncio.run(save_and_list(NewestTasks(most_bytes=1000), [900, 300, 300]))
    assert small == ["under way", "1", "2"]
