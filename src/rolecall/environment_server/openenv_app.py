"""Serves environments in OpenEnv's protocol: a session is a WebSocket, its messages are JSON.

The address of the environment `math` is `http://HOST:PORT/math`; the first one is at `/` as well.

An observation has the fields of `OBSERVATION`. They are an extension for several agents: `agent` is
to act, `messages` are what it is shown, and `waiting` holds the same of all agents that are to act
now. An action is a `message`, and may name its `agent`. The reward of an answer is that of the
agent that acted; `rewards` holds what every agent has earned since the last action.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rolecall.core.errors import InfrastructureError
from rolecall.core.json_types import JsonObject
from rolecall.core.optional import needs
from rolecall.core.types import Task
from rolecall.environment_server.hosted import HostedEnvironment
from rolecall.environment_server.session import ActionError, Call, Progress, Session
from rolecall.serve.guard import Guard, Rules

with needs("fastapi", extra="serve"):
    from fastapi import FastAPI, HTTPException, Request
    from fastapi.responses import JSONResponse
    from starlette.websockets import WebSocket, WebSocketDisconnect

if TYPE_CHECKING:
    pass

MOST_SESSIONS = 4096  # sockets at once
MOST_TASKS = 1000  # of one request


class Message(BaseModel):
    """Holds one message of a conversation."""

    role: str
    content: str


class WaitingCall(BaseModel):
    """Names an agent that is to act, and holds what it is shown."""

    agent: str
    messages: list[Message]


class Observation(BaseModel):
    """Shows an episode to its agents."""

    agent: str = ""
    messages: list[Message] = []
    waiting: list[WaitingCall] = []
    agents: list[str]
    rewards: dict[str, float]
    task: str
    truncated: bool = False
    metadata: JsonObject = {}


class Action(BaseModel):
    """Holds the words of an agent."""

    model_config = ConfigDict(extra="forbid")

    message: str
    agent: str = ""
    metadata: JsonObject = {}


class State(BaseModel):
    """Names an episode and counts its steps."""

    episode_id: str | None
    step_count: int


class Reset(BaseModel):
    """Holds the options of a reset. Others are ignored, as OpenEnv's servers do."""

    split: str = "train"
    index: int | None = Field(default=None, ge=0)
    seed: int | None = Field(default=None, ge=0)


class OpenEnvApp:
    """The routes of some environments."""

    def __init__(self, environments: Sequence[HostedEnvironment]) -> None:
        self.environments = {environment.name: environment for environment in environments}
        self._num_sessions = 0

    def add_routes(self, app: FastAPI) -> None:
        """Add all routes to an application."""
        app.add_route("/list_environments", self.list_environments)
        app.add_route("/{name}/splits", self.list_splits)
        app.add_route("/{name}/num_tasks", self.count_tasks, methods=["POST"])
        app.add_route("/{name}/task", self.read_task, methods=["POST"])
        app.add_route("/{name}/task_range", self.read_tasks, methods=["POST"])
        for prefix in ("", "/{name}"):
            app.add_route(f"{prefix}/health", self.health)
            app.add_route(f"{prefix}/metadata", self.describe)
            app.add_route(f"{prefix}/schema", self.schema)
            app.add_api_websocket_route(f"{prefix}/ws", self.play)

    async def health(self, request: Request) -> JSONResponse:
        return JSONResponse({"status": "healthy"})

    async def describe(self, request: Request) -> JSONResponse:
        environment = self._find(request.path_params)
        agents = ", ".join(environment.context.agents)
        return JSONResponse(
            {
                "name": environment.name,
                "description": f"rolecall's environment {environment.kind} for {agents}",
                "agents": list(environment.context.agents),
            }
        )

    async def schema(self, request: Request) -> JSONResponse:
        return JSONResponse(
            {
                "action": Action.model_json_schema(),
                "observation": Observation.model_json_schema(),
                "state": State.model_json_schema(),
            }
        )

    async def list_environments(self, request: Request) -> JSONResponse:
        return JSONResponse(list(self.environments))

    async def list_splits(self, request: Request) -> JSONResponse:
        names = self._find(request.path_params).splits
        return JSONResponse([{"name": name, "type": name} for name in names])

    async def count_tasks(self, request: Request) -> JSONResponse:
        tasks, _ = await self._read_request(request)
        return JSONResponse({"num_tasks": len(tasks)})

    async def read_task(self, request: Request) -> JSONResponse:
        tasks, body = await self._read_request(request)
        index = body.get("index")
        if not isinstance(index, int) or not 0 <= index < len(tasks):
            raise HTTPException(400, f"index is {index!r}; the split has {len(tasks)} tasks")
        return JSONResponse({"task": describe_task(tasks[index])})

    async def read_tasks(self, request: Request) -> JSONResponse:
        tasks, body = await self._read_request(request)
        start, stop = body.get("start") or 0, body.get("stop")
        stop = len(tasks) if stop is None else stop
        if not isinstance(start, int) or not isinstance(stop, int) or stop - start > MOST_TASKS:
            raise HTTPException(400, f"start and stop are numbers, at most {MOST_TASKS} apart")
        indices = range(max(0, start), min(stop, len(tasks)))
        return JSONResponse({"tasks": [describe_task(tasks[index]) for index in indices]})

    async def play(self, socket: WebSocket) -> None:
        """Answer the messages of one session."""
        await socket.accept()
        environment = self.environments.get(self._name(socket.path_params))
        if environment is None or self._num_sessions >= MOST_SESSIONS:
            code = "SESSION_ERROR" if environment is None else "CAPACITY_REACHED"
            await socket.send_json(describe_error(code, self._refusal(environment)))
            await socket.close()
            return
        self._num_sessions += 1
        player = Player(environment)
        try:
            while (answer := await player.answer(await receive_text(socket))) is not None:
                await socket.send_json(answer)
            await socket.close()
        except WebSocketDisconnect:
            return
        finally:
            self._num_sessions -= 1
            await player.close()

    def _refusal(self, environment: HostedEnvironment | None) -> str:
        if environment is None:
            return f"this server has {', '.join(self.environments)}"
        return f"{MOST_SESSIONS} sessions are open"

    def _name(self, parameters: Mapping[str, str]) -> str:
        return parameters.get("name", next(iter(self.environments)))

    def _find(self, parameters: Mapping[str, str]) -> HostedEnvironment:
        environment = self.environments.get(self._name(parameters))
        if environment is None:
            raise HTTPException(404, self._refusal(None))
        return environment

    async def _read_request(self, request: Request) -> tuple[Sequence[Task], JsonObject]:
        """Return the tasks of the split that a request names, and its body."""
        environment = self._find(request.path_params)
        try:
            body = await request.json()
            return environment.tasks(body["split"]), body
        except (ValueError, KeyError, TypeError) as error:
            raise HTTPException(400, f"name a split: {error}") from error


async def receive_text(socket: WebSocket) -> str:
    """Return the next message, whether it is sent as text or as bytes.

    Raises WebSocketDisconnect.
    """
    message = await socket.receive()
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message["code"], message.get("reason"))
    text: str | None = message.get("text")
    return message["bytes"].decode(errors="replace") if text is None else text


class Player:
    """One session: the messages of a socket, and their answers."""

    def __init__(self, environment: HostedEnvironment) -> None:
        self.environment = environment
        self.session: Session | None = None
        self.num_steps = 0

    async def answer(self, text: str) -> JsonObject | None:
        """Return the answer to a message; None to `close`."""
        try:
            message = json.loads(text)
        except (ValueError, RecursionError) as error:
            return describe_error("INVALID_JSON", f"Invalid JSON: {error}")
        if not isinstance(message, dict):
            return describe_error("VALIDATION_ERROR", "a message is an object with a type")
        kind, data = message.get("type"), message.get("data", {})
        if kind == "close":
            return None
        answers: dict[str, Callable[[Any], Any]] = {
            "reset": self.reset, "step": self.step, "state": self.state,
        }  # fmt: skip
        if not isinstance(kind, str) or kind not in answers:
            return describe_error("UNKNOWN_TYPE", f"Unknown message type: {kind}")
        try:
            return {"type": "state" if kind == "state" else "observation",
                    "data": await answers[kind](data)}  # fmt: skip
        except ValidationError as error:
            errors = error.errors(include_url=False, include_context=False, include_input=False)
            return describe_error("VALIDATION_ERROR", "Invalid message", errors=errors)
        except ActionError as error:
            return describe_error("VALIDATION_ERROR", str(error))
        except (InfrastructureError, RuntimeError, ValueError) as error:
            return describe_error("EXECUTION_ERROR", str(error))

    async def reset(self, data: Any) -> JsonObject:
        options = Reset.model_validate(data)
        await self.close()
        self.session, self.num_steps = self.environment.open(**options.model_dump()), 0
        return describe_progress(self.session, await self.session.start())

    async def step(self, data: Any) -> JsonObject:
        action = Action.model_validate(data)
        if self.session is None:
            raise ActionError("reset comes before the first step")
        agent = action.agent or self.session.next_agent
        progress = await self.session.act(action.message, agent)
        self.num_steps += 1
        return describe_progress(self.session, progress, agent)

    async def state(self, data: Any) -> JsonObject:
        episode = None if self.session is None else self.session.episode.id
        return State(episode_id=episode, step_count=self.num_steps).model_dump()

    async def close(self) -> None:
        """End the episode that is under way, if any."""
        if self.session is not None:
            await self.session.close()


def describe_progress(session: Session, progress: Progress, agent: str = "") -> JsonObject:
    waiting = [describe_call(call) for call in progress.calls]
    observation = Observation(
        agents=session.agents,
        rewards=progress.rewards,
        task=session.episode.task.id,
        truncated=progress.is_truncated,
        waiting=waiting,
        **({"agent": waiting[0].agent, "messages": waiting[0].messages} if waiting else {}),
    )
    return {
        "observation": observation.model_dump(),
        "reward": progress.rewards[agent] if agent else None,
        "done": progress.is_done,
    }


def describe_call(call: Call) -> WaitingCall:
    messages = [Message(role=m.role, content=m.content) for m in call.messages]
    return WaitingCall(agent=call.agent, messages=messages)


def describe_task(task: Task) -> JsonObject:
    """Return what agents may know of a task: not its answer."""
    return {"id": task.id, "prompt": task.prompt, "source": task.source}


def describe_error(code: str, message: str, **more: Any) -> JsonObject:
    return {"type": "error", "data": {"message": message, "code": code} | more}


def make_app(environments: Sequence[HostedEnvironment], rules: Rules) -> FastAPI:
    """Return the application of some environments."""
    app = FastAPI(title="rolecall environments")
    app.add_middleware(Guard, rules)
    OpenEnvApp(environments).add_routes(app)
    return app
