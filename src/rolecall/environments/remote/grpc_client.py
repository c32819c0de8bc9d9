"""Talks to a server of MRLM's gRPC protocol; see `environments.remote.messages`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from rolecall.core.errors import InfrastructureError, RunEndingError
from rolecall.core.json_types import JsonObject
from rolecall.core.optional import needs
from rolecall.core.types import Message
from rolecall.environments.remote.messages import CLASSES, MESSAGE_BYTES, METHODS, SERVICE
from rolecall.environments.remote.world import Scene

with needs("grpcio", extra="remote"):
    import grpc

SUCCESS = "success"
OPTIONS = [
    ("grpc.max_send_message_length", MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    # A server that is started again is tried soon, not after two minutes.
    ("grpc.max_reconnect_backoff_ms", 2000),
]
ENDING = (  # codes with which no other request would succeed
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.INVALID_ARGUMENT,
)
RESEND_S = 1.0  # after which a lost step is sent again
LOST = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


class Channel:
    """A connection to a server, which many sessions share.

    `certificate`: file of the certificates that the server's is checked with; None: no TLS.
    """

    def __init__(
        self, address: str, *, timeout_s: float, token: str, certificate: Path | None
    ) -> None:
        self.address, self.timeout_s = address, timeout_s
        self._metadata = [("authorization", f"Bearer {token}")] if token else []
        if certificate is None:
            self._channel = grpc.aio.insecure_channel(address, options=OPTIONS)
        else:
            credentials = grpc.ssl_channel_credentials(certificate.read_bytes())
            self._channel = grpc.aio.secure_channel(address, credentials, options=OPTIONS)
        self._methods: dict[str, Callable[..., Any]] = {
            name: self._channel.unary_unary(
                f"/{SERVICE}/{name}",
                request_serializer=CLASSES[request].SerializeToString,
                response_deserializer=CLASSES[response].FromString,
            )
            for name, (request, response) in METHODS.items()
            if name != "StreamStep"
        }

    async def call(self, name: str, **fields: Any) -> Any:
        """Return a response. A new episode waits for a server that is not there yet.

        Raises InfrastructureError, and RunEndingError where no other request would succeed.
        """
        request = CLASSES[METHODS[name][0]](**fields)
        try:
            return await self._methods[name](
                request,
                timeout=self.timeout_s,
                metadata=self._metadata,
                wait_for_ready=name != "Step",
            )
        except grpc.aio.AioRpcError as error:
            details = f"{self.address}: {error.code().name}: {error.details()}"
            kind = RunEndingError if error.code() in ENDING else InfrastructureError
            lost = LostCallError if error.code() in LOST else kind
            raise lost(details) from error

    async def list_environments(self) -> dict[str, dict[str, str]]:
        """Return the metadata of the server's environments by their names."""
        response = await self.call("ListEnvironments")
        return {one.environment_id: dict(one.metadata) for one in response.environments}

    async def close(self) -> None:
        await self._channel.close()


class LostCallError(InfrastructureError):
    """A call whose answer did not come; whether the server took it is unknown."""


class GrpcConnection:
    """One session of an environment."""

    def __init__(self, channel: Channel, environment: str) -> None:
        self.channel, self.environment = channel, environment
        self._session = ""
        self._num_steps = 0
        self._is_rolecall = False  # the server takes a step of the same number once
        self._messages: list[Message] = []  # that were shown

    async def reset(self, options: JsonObject) -> Scene:
        response = await self.channel.call(
            "Reset",
            environment_id=self.environment,
            config={name: str(value) for name, value in options.items()},
        )
        check_status(response)
        self._is_rolecall = "agents" in response.observation.info
        self._session = response.session_id
        scene = read_scene(response.observation)
        self._messages = list(scene.messages)
        return scene

    async def step(self, agent: str, action: str) -> Scene:
        metadata = {"agent": agent, "step": str(self._num_steps)} if self._is_rolecall else {}
        fields = {
            "session_id": self._session,
            "action": {"role": "assistant", "content": action, "metadata": metadata},
        }
        try:
            response = await self.channel.call("Step", **fields)
        except LostCallError:
            if not self._is_rolecall:
                raise
            await asyncio.sleep(RESEND_S)
            response = await self.channel.call("Step", **fields)
        check_status(response)
        self._num_steps += 1
        scene = read_scene(response.observation, response.reward, agent)
        if not self._is_rolecall:
            messages = join_messages(self._messages, action, list(scene.messages))
            scene = replace(scene, messages=messages)
        self._messages = list(scene.messages)
        return scene

    async def close(self) -> None:
        return None  # the protocol has no end of a session


def check_status(response: Any) -> None:
    """Check what a server says of a response; raises InfrastructureError."""
    if response.status != SUCCESS:
        raise InfrastructureError(f"the server answered with the status {response.status!r}")


def read_scene(observation: Any, reward: Any = None, agent: str = "") -> Scene:
    """Return an observation and a reward; only servers of rolecall pay several agents."""
    info = dict(observation.info)
    rewards: dict[str, float] = {}
    if reward is not None:
        is_by_agent = "agents" in info
        rewards = dict(reward.components) if is_by_agent else {agent: reward.value}
    return Scene(
        messages=[read_message(message) for message in observation.messages],
        agent=info.get("agent", ""),
        rewards=rewards,
        is_done=observation.done,
        is_truncated=info.get("truncated") == "true",
    )


def join_messages(earlier: list[Message], action: str, messages: list[Message]) -> list[Message]:
    """Return a whole conversation: MRLM's environments answer with what is new, or with all."""
    if messages[: len(earlier)] == earlier:
        return messages
    own = Message("assistant", action)
    return [*earlier, own, *(messages[1:] if messages[:1] == [own] else messages)]


def read_message(message: Any) -> Message:
    """Return a message; the role `environment` is the user's in a chat template."""
    role = "user" if message.role in ("environment", "tool") else message.role
    return Message(role, message.content)


def read_splits(metadata: dict[str, str]) -> dict[str, int]:
    """Return the sizes of an environment's splits, where its server says them."""
    splits: dict[str, int] = json.loads(metadata.get("splits", "{}"))
    return splits
