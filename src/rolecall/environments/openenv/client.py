"""Talks to a server of OpenEnv: a session is a WebSocket, its messages are JSON."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from rolecall.core.errors import InfrastructureError, RunEndingError
from rolecall.core.json_types import JsonObject
from rolecall.core.optional import needs
from rolecall.core.types import Message
from rolecall.environments.remote.world import Scene
from rolecall.runtime.call_tree import outside, waiting

with needs("websockets", extra="remote"):
    from websockets.asyncio.client import ClientConnection, connect
    from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

MESSAGE_BYTES = 100 << 20
FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 2.0  # between two tries to begin a session
REFUSED = (401, 403, 404)  # statuses with which no other session would begin
WHOLE = "json"  # the agent's text is the whole action


@dataclass(frozen=True, slots=True)
class Form:
    """Makes an action of a text, and a text of an observation."""

    rules: str  # text before the first observation
    action: str  # field of an action that takes the text, or WHOLE
    show: str | None  # field of an observation that is shown; None: all of it, as JSON

    def write_action(self, text: str) -> JsonObject:
        """Return an action. Raises ValueError for a text that is to be an object and is none."""
        if self.action != WHOLE:
            return {self.action: text}
        try:
            action = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"write a JSON object and nothing else: {error}") from error
        if not isinstance(action, dict):
            raise ValueError("write a JSON object")
        return action

    def write_observation(self, observation: Mapping[str, Any]) -> str:
        """Return the text of an observation. Raises RunEndingError if it lacks the field."""
        if self.show is None:
            fields = {name: value for name, value in observation.items() if name != "metadata"}
            return json.dumps(fields, ensure_ascii=False)
        if self.show not in observation:
            names = ", ".join(observation)
            raise RunEndingError(
                f"environment.show: an observation has no {self.show!r}; it has {names}"
            )
        shown = observation[self.show]
        return shown if isinstance(shown, str) else json.dumps(shown, ensure_ascii=False)


class ServerError(InfrastructureError):
    """An error that the server sent, with its code."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"the server answered {code}: {message}")
        self.code, self.message = code, message


class Places:
    """Lets episodes wait, in their order, until a session on a full server ends."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def wait(self, longest_s: float) -> None:
        """Wait until a session of this process ends, at most that long."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            with waiting():  # those that have a session may need an engine until then
                await asyncio.wait([turn], timeout=longest_s)
        finally:
            if turn in self._waiting:
                self._waiting.remove(turn)

    def free(self) -> None:
        """Wake the episode that has waited longest."""
        if self._waiting:
            self._waiting.popleft().set_result(None)


class OpenEnvConnection:
    """One session of an environment at an address such as `ws://localhost:8000/ws`."""

    def __init__(
        self, address: str, form: Form, places: Places, *, timeout_s: float, token: str
    ) -> None:
        self.address, self.form, self.timeout_s = address, form, timeout_s
        self._places = places
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._socket: ClientConnection | None = None
        self._scene = Scene()

    async def reset(self, options: JsonObject) -> Scene:
        data = await self._begin(options)
        self._scene = self._read(data, messages=[], agent="")
        return self._scene

    async def step(self, agent: str, action: str) -> Scene:
        before = [*self._scene.messages, Message("assistant", action)]
        try:
            sent = self.form.write_action(action)
            if self._scene.agent:
                sent["agent"] = self._scene.agent
            data = await self._send("step", sent)
        except ValueError as error:
            return self._refuse(before, str(error))
        except ServerError as error:
            if error.code != "VALIDATION_ERROR":
                raise
            return self._refuse(before, error.message)
        self._scene = self._read(data, messages=before, agent=agent)
        return self._scene

    def _refuse(self, messages: list[Message], problem: str) -> Scene:
        """Say to the agent that acted what is wrong with its action, which did nothing."""
        notice = Message("user", f"That was no valid action: {problem}")
        self._scene = replace(
            self._scene, messages=[*messages, notice], rewards={}, is_invalid=True
        )
        return self._scene

    async def close(self) -> None:
        if self._socket is not None:
            await self._socket.close()
            self._places.free()

    async def _begin(self, options: JsonObject) -> JsonObject:
        """Connect and reset. A server that is not there is waited for, one that is full for long.

        Raises InfrastructureError where it does not come.
        """
        wait_s, deadline = FIRST_WAIT_S, asyncio.get_running_loop().time() + self.timeout_s
        while True:
            try:
                self._socket = await outside(self._connect())  # it starts tasks of its own
                return await self._send("reset", options)
            except ServerError as error:
                if error.code != "CAPACITY_REACHED":
                    raise
                self._socket = None
                await self._places.wait(LONGEST_WAIT_S)
            except OSError as error:
                if asyncio.get_running_loop().time() + wait_s > deadline:
                    raise InfrastructureError(f"{self.address}: {error}") from error
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, LONGEST_WAIT_S)

    async def _connect(self) -> ClientConnection:
        try:
            return await connect(
                self.address,
                additional_headers=self._headers,
                max_size=MESSAGE_BYTES,
                open_timeout=self.timeout_s,
            )
        except InvalidStatus as error:
            kind = RunEndingError if error.response.status_code in REFUSED else InfrastructureError
            raise kind(f"{self.address}: {error}") from error
        except WebSocketException as error:
            raise InfrastructureError(f"{self.address}: {error}") from error

    async def _send(self, kind: str, data: JsonObject) -> JsonObject:
        """Send a message and return the data of its answer. Raises InfrastructureError."""
        assert self._socket is not None, "reset comes first"
        try:
            async with asyncio.timeout(self.timeout_s):
                with suppress(ConnectionClosed):  # it may have said why before
                    await self._socket.send(json.dumps({"type": kind, "data": data}))
                answer = json.loads(await self._socket.recv(decode=True))
        except (WebSocketException, TimeoutError, ValueError) as error:
            problem = str(error) or f"no answer within {self.timeout_s:g} s"
            raise InfrastructureError(f"{self.address}: {problem}") from error
        content: JsonObject = answer.get("data", {})
        if answer.get("type") == "error":
            raise ServerError(str(content.get("code")), describe_problem(content))
        return content

    def _read(self, data: JsonObject, *, messages: list[Message], agent: str) -> Scene:
        """Return what the server answers, after `messages` if it does not keep them itself."""
        observation, reward = data.get("observation") or {}, data.get("reward")
        if is_for_agents(observation):
            return Scene(
                messages=[Message(m["role"], m["content"]) for m in observation["messages"]],
                agent=observation["agent"],
                rewards=observation["rewards"],
                is_done=bool(data.get("done")),
                is_truncated=observation["truncated"],
            )
        text = self.form.write_observation(observation)
        if not messages and self.form.rules:
            text = f"{self.form.rules}\n\n{text}"
        return Scene(
            messages=[*messages, Message("user", text)],
            rewards={} if reward is None else {agent: float(reward)},
            is_done=bool(data.get("done")),
        )


def describe_problem(error: JsonObject) -> str:
    """Return the message of an error, and what pydantic says of the first wrong field."""
    problem = str(error.get("message"))
    fields = error.get("errors")
    if isinstance(fields, list) and fields and isinstance(fields[0], dict):
        name = ".".join(map(str, fields[0].get("loc", ())))
        problem += f": {name}: {fields[0].get('msg')}"
    return problem


def is_for_agents(fields: Mapping[str, Any]) -> bool:
    """Return whether an observation, or its schema, has the fields for several agents."""
    return {"agent", "messages", "rewards", "truncated"} <= fields.keys()


def socket_address(url: str) -> str:
    """Return the address of the WebSocket: http://host:8000/math -> ws://host:8000/math/ws.

    Raises ValueError for what is no address.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https", "ws", "wss") or not parts.netloc:
        raise ValueError(f"url is {url!r}; write an address such as http://localhost:8000")
    scheme = "wss" if parts.scheme in ("https", "wss") else "ws"
    return urlunsplit((scheme, parts.netloc, parts.path.rstrip("/") + "/ws", "", ""))
