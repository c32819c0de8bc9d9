"""Serves environments in MRLM's gRPC protocol; see `environments.remote.messages`.

A session's observation holds the messages for the agent that is to act, whose name is
`info["agent"]`. `info["waiting"]` names all agents that are to act, if several are. An action may
name its agent in `metadata["agent"]`, and its number in the session in `metadata["step"]`: a step
that is sent again is answered again, and taken once.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from secrets import token_hex
from typing import Any

from rolecall.core.errors import InfrastructureError
from rolecall.core.optional import needs
from rolecall.environment_server.hosted import HostedEnvironment
from rolecall.environment_server.session import ENDED, ActionError, Progress, Session
from rolecall.environments.remote.messages import CLASSES, MESSAGE_BYTES, METHODS, SERVICE
from rolecall.runtime.call_tree import outside

with needs("grpcio", extra="remote"):
    import grpc

MOST_SESSIONS = 4096  # under way at once
MOST_ENDED = 1024  # whose last answer is kept for a step that is sent again
SUCCESS = "success"
NUMBERS = ("index", "seed")  # of a reset's config, beside `split`


class StatusError(Exception):
    """A request that ends with a status of gRPC."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(details)
        self.code = code


@dataclass(frozen=True, slots=True)
class Failure:
    """Says what is wrong with a step, without the frames that an exception would keep."""

    code: grpc.StatusCode
    details: str


@dataclass(slots=True)
class OpenSession:
    """A session, the number of its steps, and the newest one."""

    session: Session | None  # None once it has ended
    num_steps: int = 0
    newest: asyncio.Task[Any] | None = field(default=None)  # a StepResponse or a Failure


class EnvironmentService:
    """The methods of `mrlm.EnvironmentService`."""

    def __init__(self, environments: Sequence[HostedEnvironment]) -> None:
        self.environments = {environment.name: environment for environment in environments}
        self._open: dict[str, OpenSession] = {}
        self._ended: OrderedDict[str, OpenSession] = OrderedDict()

    async def Reset(self, request: Any) -> Any:
        environment = self.environments.get(request.environment_id)
        if environment is None:
            names = ", ".join(self.environments)
            details = f"no environment {request.environment_id!r}; this server has {names}"
            raise StatusError(grpc.StatusCode.NOT_FOUND, details)
        if len(self._open) >= MOST_SESSIONS:
            details = f"{MOST_SESSIONS} sessions are open; end some"
            raise StatusError(grpc.StatusCode.RESOURCE_EXHAUSTED, details)
        try:
            session = environment.open(**read_reset(request.config))
        except ValueError as error:
            raise StatusError(grpc.StatusCode.INVALID_ARGUMENT, str(error)) from error
        try:
            progress = await session.start()
        except BaseException:  # it failed, or the client has left
            await session.close()
            raise
        name = token_hex(16)
        self._open[name] = OpenSession(session)
        session.call_at_end(partial(self._end, name))
        return CLASSES["ResetResponse"](
            observation=describe_observation(session, progress), session_id=name, status=SUCCESS
        )

    async def Step(self, request: Any) -> Any:
        name = request.session_id
        entry = self._open.get(name) or self._ended.get(name)
        if entry is None:
            raise StatusError(grpc.StatusCode.NOT_FOUND, f"no session {name!r}")
        metadata = request.action.metadata
        number = read_number(metadata["step"], "step") if "step" in metadata else entry.num_steps
        if number == entry.num_steps:
            if entry.session is None:
                raise StatusError(grpc.StatusCode.FAILED_PRECONDITION, ENDED)
            entry.num_steps += 1
            entry.newest = outside(self._act(entry, entry.session, request.action, entry.newest))
        elif number != entry.num_steps - 1 or entry.newest is None:
            details = f"step is {number}; the next one of this session is {entry.num_steps}"
            raise StatusError(grpc.StatusCode.FAILED_PRECONDITION, details)
        # A client that leaves does not stop the step, so that it can ask again.
        answer = await asyncio.shield(entry.newest)
        if isinstance(answer, Failure):
            raise StatusError(answer.code, answer.details)
        return answer

    async def BatchStep(self, request: Any) -> Any:
        by_session: dict[str, list[int]] = {}
        for index, step in enumerate(request.requests):
            by_session.setdefault(step.session_id, []).append(index)
        responses: list[Any] = [None] * len(request.requests)

        async def take_steps(indices: list[int]) -> None:
            for index in indices:
                try:
                    responses[index] = await self.Step(request.requests[index])
                except Exception as error:
                    responses[index] = CLASSES["StepResponse"](status=f"error: {error}")

        await asyncio.gather(*map(take_steps, by_session.values()))
        return CLASSES["BatchStepResponse"](responses=responses)

    async def ListEnvironments(self, request: Any) -> Any:
        kind = request.environment_type
        listed = [one for one in self.environments.values() if not kind or one.kind == kind]
        return CLASSES["ListEnvironmentsResponse"](
            environments=[describe_environment(environment) for environment in listed]
        )

    async def HealthCheck(self, request: Any) -> Any:
        numbers = {
            "num_environments": str(len(self.environments)),
            "num_sessions": str(len(self._open)),
        }
        return CLASSES["HealthCheckResponse"](
            status="healthy", info=numbers, timestamp=int(time.time())
        )

    async def close(self) -> None:
        """End all sessions."""
        sessions = [entry.session for entry in self._open.values()]
        await asyncio.gather(*(session.close() for session in sessions if session is not None))

    async def _act(
        self, entry: OpenSession, session: Session, action: Any, previous: asyncio.Task[Any] | None
    ) -> Any:
        """Return the response to an action, or a Failure."""
        agent = action.metadata.get("agent") or session.next_agent
        try:
            progress = await session.act(action.content, agent)
        except ActionError as error:
            entry.num_steps -= 1  # nothing was done
            if entry.newest is asyncio.current_task():
                entry.newest = previous
            return Failure(grpc.StatusCode.FAILED_PRECONDITION, str(error))
        except Exception as error:
            return Failure(*describe_error(error))
        return CLASSES["StepResponse"](
            observation=describe_observation(session, progress),
            reward=describe_reward(progress, agent),
            status=SUCCESS,
        )

    def _end(self, name: str) -> None:
        """Forget a session that has ended, except the answer to its last step."""
        entry = self._ended[name] = self._open.pop(name)
        entry.session = None
        while len(self._ended) > MOST_ENDED:
            self._ended.popitem(last=False)


def describe_observation(session: Session, progress: Progress) -> Any:
    info = {"task": session.episode.task.id, "agents": ",".join(session.agents)}
    messages = []
    if progress.calls:
        call = progress.calls[0]
        messages = [{"role": m.role, "content": m.content} for m in call.messages]
        info["agent"] = call.agent
        info["waiting"] = ",".join(one.agent for one in progress.calls)
    if progress.is_truncated:
        info["truncated"] = "true"
    return CLASSES["ObservationProto"](messages=messages, done=progress.is_done, info=info)


def describe_reward(progress: Progress, agent: str) -> Any:
    """Return what the agent that acted has earned, and what all have earned as components."""
    return CLASSES["RewardProto"](
        value=progress.rewards[agent], components=progress.rewards, info={"agent": agent}
    )


def describe_environment(environment: HostedEnvironment) -> Any:
    metadata = {
        "agents": ",".join(environment.context.agents),
        "splits": json.dumps({name: len(environment.tasks(name)) for name in environment.splits}),
    }
    return CLASSES["EnvironmentInfo"](
        environment_id=environment.name,
        environment_type=environment.kind,
        mode="client",
        metadata=metadata,
    )


def read_reset(config: Any) -> dict[str, Any]:
    """Return the options of `HostedEnvironment.open`. Raises ValueError."""
    unknown = sorted({*config} - {"split", *NUMBERS})
    if unknown:
        raise ValueError(f"config has {unknown[0]!r}; it may have split, index and seed")
    options: dict[str, Any] = {name: read_number(config[name], name) for name in NUMBERS
                               if name in config}  # fmt: skip
    return options | ({"split": config["split"]} if "split" in config else {})


def read_number(text: str, name: str) -> int:
    """Return a whole number of at least 0. Raises StatusError."""
    if not text.isdecimal():
        details = f"{name} is {text!r}; write a whole number of at least 0"
        raise StatusError(grpc.StatusCode.INVALID_ARGUMENT, details)
    return int(text)


def make_server(
    service: EnvironmentService,
    address: str,
    *,
    token: str = "",
    certificate: tuple[bytes, bytes] | None = None,
) -> tuple[grpc.aio.Server, int]:
    """Return a server and its port; port 0 of the address is a free one.

    token: what clients must send as `authorization: Bearer TOKEN`, if not empty.
    certificate: private key and certificate chain in PEM, for TLS.
    """
    options = [
        ("grpc.max_send_message_length", MESSAGE_BYTES),
        ("grpc.max_receive_message_length", MESSAGE_BYTES),
        ("grpc.so_reuseport", 0),
    ]
    server = grpc.aio.server(options=options)
    handlers = {}
    for name, (request, response) in METHODS.items():
        coders = {
            "request_deserializer": CLASSES[request].FromString,
            "response_serializer": CLASSES[response].SerializeToString,
        }
        if name == "StreamStep":
            handler = make_stream_handler(service.Step, token)
            handlers[name] = grpc.stream_stream_rpc_method_handler(handler, **coders)
        else:
            handler = make_handler(getattr(service, name), token)
            handlers[name] = grpc.unary_unary_rpc_method_handler(handler, **coders)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(SERVICE, handlers)])
    if certificate is None:
        port = server.add_insecure_port(address)
    else:
        port = server.add_secure_port(address, grpc.ssl_server_credentials([certificate]))
    return server, port


def make_handler(method: Callable[[Any], Any], token: str) -> Any:
    """Return a handler that turns what a method raises into a status."""

    async def handle(request: Any, context: Any) -> Any:
        try:
            check_token(context, token)
            return await method(request)
        except Exception as error:
            await context.abort(*describe_error(error))

    return handle


def make_stream_handler(method: Callable[[Any], Any], token: str) -> Any:
    async def handle(requests: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        try:
            check_token(context, token)
            async for request in requests:
                yield await method(request)
        except Exception as error:
            await context.abort(*describe_error(error))

    return handle


def check_token(context: Any, token: str) -> None:
    if not token:
        return
    sent = dict(context.invocation_metadata() or ()).get("authorization", "")
    if not hmac.compare_digest(str(sent).encode(), f"Bearer {token}".encode()):
        details = "send the metadata authorization: Bearer TOKEN with this server's token"
        raise StatusError(grpc.StatusCode.UNAUTHENTICATED, details)


def describe_error(error: Exception) -> tuple[grpc.StatusCode, str]:
    """Return the status and the text with which a request ends."""
    if isinstance(error, StatusError):
        return error.code, str(error)
    if isinstance(error, InfrastructureError):
        return grpc.StatusCode.UNAVAILABLE, str(error)
    return grpc.StatusCode.INTERNAL, str(error)
