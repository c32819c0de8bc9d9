"""Programs of soak_clients.py, good and bad ones: each asks for one episode over HTTP."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import anthropic
import grpc
import httpx
import openai
from gateway import QUESTION, TOOLS
from google import genai
from google.genai import errors, types

SESSIONS_PER_S = 2.0
COUNTS: Counter[str] = Counter()  # of answers, by program and status
SURPRISES: dict[str, str] = {}  # an error by the answer that no program should get
USER = {"role": "user", "content": QUESTION}
OPENAI = openai.AsyncOpenAI(api_key="x", base_url="http://127.0.0.1:1", max_retries=0, timeout=30)
ANTHROPIC = anthropic.AsyncAnthropic(api_key="x", max_retries=0, timeout=30)
HTTP = httpx.AsyncClient(timeout=30)
CHAT = "/v1/chat/completions"
RUNNING: set[asyncio.Task[Any]] = set()


@dataclass(frozen=True, slots=True)
class Rollout:
    """An episode as its program sees it."""

    name: str
    address: str
    key: str
    finish_url: str

    @property
    def openai(self) -> openai.AsyncOpenAI:
        return OPENAI.copy(api_key=self.key, base_url=f"{self.address}/v1")

    async def ask(self, *expected: object, path: str = CHAT, **options: Any) -> Any:
        """Send one request, and count its answer."""
        headers = {"authorization": f"Bearer {self.key}"} | options.pop("headers", {})
        options = options or {"json": write_body(QUESTION)}
        sending = HTTP.post(self.address + path, headers=headers, **options)
        return await count(self.name, sending, *expected)


def write_body(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "solver", "messages": [{"role": "user", "content": text}]} | more


async def count(name: str, answering: Awaitable[Any], *expected: object) -> Any:
    """Note the status of an answer; return the answer, or None for an error."""
    answer, detail = None, ""
    try:
        answer = await answering
        status = answer.status_code if isinstance(answer, httpx.Response) else 200
        detail = answer.text if isinstance(answer, httpx.Response) else ""
    except (openai.APIStatusError, anthropic.APIStatusError) as error:
        status, detail = error.status_code, str(error)
    except errors.APIError as error:
        status, detail = error.code, str(error)
    except grpc.aio.AioRpcError as error:
        status, detail = error.code().name, str(error.details())
    except Exception as error:
        status, detail = type(error).__name__, str(error)
    COUNTS[f"{name} {status}"] += 1
    if status not in (expected or (200,)):
        SURPRISES.setdefault(f"{name} {status}", detail[:500])
    return answer


async def chat(rollout: Rollout, is_edited: bool = False) -> None:
    messages: list[Any] = [USER]
    for _ in range(4):
        asking = rollout.openai.chat.completions.create(model="solver", messages=messages)
        if (reply := await count(rollout.name, asking)) is not None:
            messages += [reply.choices[0].message, USER]
        if is_edited:
            messages[0] = {"role": "user", "content": f"{QUESTION} {len(messages)}"}


async def edit(rollout: Rollout) -> None:
    await chat(rollout, is_edited=True)


async def stream(rollout: Rollout) -> None:
    async def read() -> str:
        asking = rollout.openai.chat.completions.create(
            model="solver", messages=[USER], stream=True
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in await asking])

    for _ in range(4):
        await count(rollout.name, read())


async def tools(rollout: Rollout) -> None:
    messages: list[Any] = [{"role": "user", "content": "CALL BOTH"}]
    for _ in range(3):
        asking = rollout.openai.chat.completions.create(
            model="solver", messages=messages, tools=TOOLS, parallel_tool_calls=True
        )
        message = (await count(rollout.name, asking)).choices[0].message
        messages.append(message)
        for call in message.tool_calls or ():
            messages.append({"role": "tool", "tool_call_id": call.id, "content": "RESULT"})
        if not message.tool_calls:
            messages.append(USER)


async def responses(rollout: Rollout) -> None:
    previous = openai.omit
    for _ in range(4):
        asking = rollout.openai.responses.create(
            model="solver", input=QUESTION, previous_response_id=previous
        )
        if (reply := await count(rollout.name, asking)) is not None:
            previous = reply.id


async def messages(rollout: Rollout) -> None:
    client = ANTHROPIC.copy(api_key=rollout.key, base_url=rollout.address)

    async def read() -> str:
        options: Any = {"model": "solver", "max_tokens": 100, "messages": [USER]}
        async with client.messages.stream(**options) as events:
            return await events.get_final_text()

    for _ in range(4):
        await count(rollout.name, read())


async def google(rollout: Rollout) -> None:
    options = types.HttpOptions(base_url=rollout.address)
    async with genai.Client(api_key=rollout.key, http_options=options).aio as client:
        for _ in range(4):
            asking = client.models.generate_content(model="solver", contents=QUESTION)
            await count(rollout.name, asking)


async def retry(rollout: Rollout) -> None:
    again = {"x-stainless-retry-count": "1"}
    asking = [rollout.ask(json=write_body("SLOW"), headers=again) for _ in range(3)]
    answers = await asyncio.gather(*asking)
    answers.append(await rollout.ask(json=write_body("SLOW"), headers=again))
    if len({answer.json()["id"] for answer in answers}) != 1:
        SURPRISES["retry"] = "equal requests got different replies"


async def refuse(rollout: Rollout) -> None:
    await rollout.ask(401, headers={"authorization": "Bearer nobody"})
    await rollout.ask(404, path="/agents/nobody" + CHAT)
    await rollout.ask(400, content=b'{"model": ')
    reader, writer = await send(rollout, b"", size=33 << 20)
    await count(f"{rollout.name} {int((await reader.readline()).split()[1])}", reader.read())
    writer.close()
    await rollout.ask()


async def crowd(rollout: Rollout) -> None:
    """Ask more at once than may run, and for more turns than an episode has."""
    bodies = [write_body(f"SLOW {number}") for number in range(24)]
    await asyncio.gather(*(rollout.ask(200, 400, json=body) for body in bodies))


async def send(
    rollout: Rollout, body: bytes, *, size: int = 0
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Write a head and a body, which may be less than the head says."""
    port = int(rollout.address.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = (
        f"POST {CHAT} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {rollout.key}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {size or len(body)}\r\n\r\n"
    )
    writer.write(head.encode() + body)
    await writer.drain()
    return reader, writer


async def vanish(rollout: Rollout) -> None:
    """Leave in the middle of a body, of the wait for an answer, and of a stream."""
    body = json.dumps(write_body("SLOW", stream=True)).encode()
    for size, received in ((len(body) + 20, 0), (len(body), 0), (len(body), 40)):
        reader, writer = await send(rollout, body, size=size)
        await asyncio.sleep(0.05)
        await reader.read(received)
        writer.transport.abort()
        COUNTS[f"{rollout.name} closed"] += 1


async def end_early(rollout: Rollout) -> None:
    """End the episode while two requests are under way."""
    for is_streamed in (True, False):
        body = write_body("SLOW", stream=is_streamed)
        keep(rollout.ask(200, 410, json=body))
    await rollout.ask()


async def finish_twice(rollout: Rollout) -> None:
    """Say twice that the episode is over, and ask once more."""
    await rollout.ask()
    for expected in ((200,), (200, 410)):
        sending = HTTP.post(rollout.finish_url, json={"answer": "4", "reward": 1.0})
        await count(rollout.name, sending, *expected)
    await asyncio.sleep(0.2)
    await rollout.ask(410)


async def hang(rollout: Rollout) -> None:
    await rollout.ask()
    await asyncio.sleep(60)


PROGRAMS: dict[str, Callable[[Rollout], Awaitable[None]]] = {
    program.__name__: program
    for program in (
        chat, stream, tools, responses, messages, google, retry, edit, refuse, crowd, vanish,
        end_early, finish_twice, hang,
    )
}  # fmt: skip


def keep(work: Any) -> None:
    task = asyncio.ensure_future(work)
    RUNNING.add(task)
    task.add_done_callback(RUNNING.discard)
