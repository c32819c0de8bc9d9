"""A local HTTP server that speaks the three providers' wire formats and does what a test says."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from rolecall.core.interfaces.environment import World
from rolecall.core.types import Episode, Task
from rolecall.rewards.coach.coach import Coach
from rolecall.rewards.coach.sections import Answers, View
from tests import toy
from tests.chat_models import chat_model, judge_config


@dataclass
class Asked:
    """One request as the server read it."""

    path: str
    headers: dict[str, str]
    body: dict
    user: str
    system: str
    number: int  # of the requests about this action, from 0

    @property
    def nonce(self) -> str:
        return re.search(r"Request code: (\w+)", self.user)[1]

    def block(self, name: str) -> str:
        found = re.search(rf"<<<{self.nonce} {name}\n(.*?)\n{self.nonce} end>>>", self.user, re.S)
        return found[1]

    def json(self, score: object, **more: object) -> Said:
        """The answer that was asked for."""
        answer = {"reasoning": "because", "process_score": score, "request": self.nonce}
        return Said(json.dumps(answer | more))

    def text(self, score: object, *, before: str = "because") -> Said:
        return Said(f"{before}\nREQUEST: {self.nonce}\nPROCESS_SCORE: {score}")


@dataclass
class Said:
    text: str
    truncated: bool = False


@dataclass
class Refused:
    status: int
    headers: dict[str, str] = field(default_factory=dict)
    text: str = '{"error": {"message": "no", "code": 0}}'
    kind: str = "application/json"


HANG, HANG_UP = "hang", "hang up"
# A word, because two digits may also stand in a request code, which is random and hexadecimal.
TRUTH = "forty-two"
Answer = Said | Refused | str
Rule = Callable[[Asked], Answer]


class Server:
    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.asked: list[Asked] = []
        self.times: Counter[str] = Counter()
        self.under_way = self.most_under_way = 0
        self.base = ""

    def url(self, provider: str) -> str:
        return self.base + ("/v1" if provider == "openai" else "")

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        try:
            await self._serve(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client gave up first
        finally:
            self.under_way -= 1
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        first, *lines = head.strip().split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        if first.startswith("GET"):  # of the list of models, before a run
            writer.write(b"HTTP/1.1 200 X\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
            return
        body = json.loads(await reader.readexactly(int(headers["content-length"])))
        system, user = _messages(body)
        asked = Asked(first.split()[1], headers, body, user, system, number=0)
        action = asked.block("action")
        asked.number, self.times[action] = self.times[action], self.times[action] + 1
        self.asked.append(asked)
        answer = self.rule(asked)
        if answer == HANG:
            await reader.read()  # until the client hangs up
        if isinstance(answer, str):
            return
        if isinstance(answer, Said):
            answer = Refused(200, text=json.dumps(_wire(asked.path, answer)))
        data = answer.text.encode()
        extra = "".join(f"{name}: {value}\r\n" for name, value in answer.headers.items())
        writer.write(
            f"HTTP/1.1 {answer.status} X\r\nContent-Type: {answer.kind}\r\n{extra}"
            f"Content-Length: {len(data)}\r\nConnection: close\r\n\r\n".encode()
            + data
        )
        await writer.drain()


def _messages(body: dict) -> tuple[str, str]:
    """-> (system, user), from any of the three request formats."""
    if "contents" in body:
        parts = body["systemInstruction"]["parts"]
        return parts[0]["text"], body["contents"][0]["parts"][0]["text"]
    if "system" in body:
        return body["system"], body["messages"][0]["content"]
    return body["messages"][0]["content"], body["messages"][1]["content"]


def _wire(path: str, said: Said) -> dict:
    """1,000 prompt tokens, 400 of them cached; 50 of completion, 20 of them reasoning."""
    if path.endswith("/chat/completions"):
        message = {"role": "assistant", "content": said.text}
        finish = "length" if said.truncated else "stop"
        return {
            "id": "c",
            "object": "chat.completion",
            "created": 0,
            "model": "m",
            "choices": [{"index": 0, "message": message, "finish_reason": finish}],
            "usage": {
                "prompt_tokens": 1000,
                "completion_tokens": 50,
                "total_tokens": 1050,
                "prompt_tokens_details": {"cached_tokens": 400},
                "completion_tokens_details": {"reasoning_tokens": 20},
            },
        }
    if path.endswith("/messages"):
        return {
            "id": "m",
            "type": "message",
            "role": "assistant",
            "model": "m",
            "content": [{"type": "text", "text": said.text}],
            "stop_reason": "max_tokens" if said.truncated else "end_turn",
            "usage": {
                "input_tokens": 600,
                "cache_read_input_tokens": 400,
                "output_tokens": 50,
                "output_tokens_details": {"thinking_tokens": 20},
            },
        }
    thought = {"text": "a thought, not the answer", "thought": True}
    return {
        "candidates": [
            {
                "content": {"role": "model", "parts": [thought, {"text": said.text}]},
                "finishReason": "MAX_TOKENS" if said.truncated else "STOP",
            }
        ],
        "usageMetadata": {
            "promptTokenCount": 1000,
            "cachedContentTokenCount": 400,
            "candidatesTokenCount": 30,
            "thoughtsTokenCount": 20,
        },
    }


@asynccontextmanager
async def serving(rule: Rule) -> AsyncIterator[Server]:
    server = Server(rule)
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0, backlog=1024)
    server.base = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    try:
        yield server
    finally:
        listening.close()


def said(*texts: str, name: str = "4:t:0", agents: tuple[str, ...] = ()) -> Episode:
    """An episode in which each text is one action."""
    names = agents or tuple(f"agent{number}" for number in range(len(texts)))
    turns = []
    for number, (agent, text) in enumerate(zip(names, texts, strict=True)):
        turn = toy.turn(agent, episode=name, path=(number,))
        turn.text = text
        turns.append(turn)
    task = Task("t", "What is 6 * 7?", answer=TRUTH)
    episode = Episode(name, task, attempt=0, seed=0, turns=turns)
    episode.scores["team"] = 1.0
    return episode


def coach_of(
    server: Server, *, provider="openai", engine=(), replies=(), prices=(), view=(), answers=(),
    **options,
) -> Coach:  # fmt: skip
    """`vertex` stands for the engine `google` with `vertex: true`."""
    named = {"name": "google", "vertex": True} if provider == "vertex" else {"name": provider}
    config = judge_config(
        server.url(provider), engine=named | dict(engine), replies=replies, prices=prices
    )
    sections = {"view": View(**dict(view)), "answers": Answers(**dict(answers))}
    return Coach(policy=chat_model(config), **sections, **options)


def play(rule: Rule, *episodes, **options) -> tuple[Server, Coach]:
    """Score the episodes one after the other."""

    async def go():
        async with serving(rule) as server:
            coach = coach_of(server, **options)
            for episode in episodes:
                assert await coach(episode, World()) == {}
            return server, coach

    return asyncio.run(go())


def eight(asked):
    return asked.json(8)
