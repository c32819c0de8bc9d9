"""Answers each message of a client of A2A as a task of its own."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from rolecall.core.json_types import JsonObject
from rolecall.core.optional import needs
from rolecall.gateway.agent2agent.tasks import ANSWER, NewestTasks
from rolecall.gateway.dialects.base import parse
from rolecall.gateway.dialects.reply import Reply
from rolecall.gateway.dialects.request import ForeignMessage, ForeignRequest, RequestError
from rolecall.gateway.routes import Answerer

with needs("a2a", extra="a2a"):
    from a2a.helpers import get_message_text, new_task, new_text_part
    from a2a.server.agent_execution import (
        AgentExecutor,
        RequestContext,
        SimpleRequestContextBuilder,
    )
    from a2a.server.context import ServerCallContext
    from a2a.server.events import EventQueue
    from a2a.server.tasks import TaskUpdater
    from a2a.types import Message, Role, SendMessageRequest, TaskState
    from a2a.utils.errors import (
        ContentTypeNotSupportedError,
        InvalidParamsError,
        UnsupportedOperationError,
    )
    from google.protobuf.json_format import MessageToDict

CONVERSATION = "conversation"  # name of the artifact with what the agents said
MOST_WAITING = 256  # tasks that wait or are answered at once


class Options(BaseModel):
    """The metadata of a request that a team reads; other metadata is for others."""

    model_config = ConfigDict(allow_inf_nan=False)

    show_conversation: bool = False
    seed: int | None = None
    temperature: float | None = Field(None, ge=0.0, le=100.0)
    top_p: float | None = Field(None, gt=0.0, le=1.0)
    top_k: int | None = Field(None, ge=0, le=1_000_000_000)


class CheckedMessages(SimpleRequestContextBuilder):
    """Refuses messages that cannot be answered before they become tasks."""

    async def build(
        self,
        context: ServerCallContext,
        params: SendMessageRequest | None = None,
        task_id: str | None = None,
        **options: Any,
    ) -> RequestContext:
        """Return what the executor reads; raises the SDK's errors, which have codes."""
        assert params is not None, "the SDK builds contexts of messages alone"
        if task_id is not None:
            raise UnsupportedOperationError(
                "each message is a task of its own: leave taskId out, and send contextId to go on "
                "with a conversation"
            )
        make_request(params.message, MessageToDict(params.metadata))
        return await super().build(context, params=params, task_id=task_id, **options)


class TeamExecutor(AgentExecutor):
    """Lets a team answer messages, and publishes its answers as artifacts."""

    def __init__(self, answerer: Answerer, tasks: NewestTasks, most: int = MOST_WAITING) -> None:
        self._answerer, self._tasks, self._most = answerer, tasks, most
        self._waiting = 0

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        """Answer a message; a task that fails or is refused says why."""
        submitted = TaskState.TASK_STATE_SUBMITTED
        task = new_task(context.task_id, context.context_id, submitted, history=[context.message])
        await event_queue.enqueue_event(task)
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        if self._waiting >= self._most:
            await updater.reject(_say(updater, "too many tasks wait; try again"))
            return
        self._waiting += 1
        try:
            await updater.start_work()
            await _publish(await self._answer(context), updater)
        except RequestError as error:
            await updater.failed(_say(updater, str(error)))
        finally:
            self._waiting -= 1

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        """End a task; the SDK then ends `execute`."""
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()

    async def _answer(self, context: RequestContext) -> Reply:
        earlier = await self._tasks.read_conversation(context.context_id, context.call_context)
        request = make_request(context.message, context.metadata, earlier)
        [reply] = await self._answerer.answer("", request)
        return reply


def make_request(
    message: Message, metadata: JsonObject, earlier: tuple[ForeignMessage, ...] = ()
) -> ForeignRequest:
    """Return what a message asks after `earlier` ones; raises the SDK's errors."""
    for content in message.parts:
        if not content.HasField("text"):
            kind = content.WhichOneof("content")
            raise ContentTypeNotSupportedError(f"a part has {kind}; the team reads text alone")
    text = get_message_text(message)
    if not text.strip():
        raise InvalidParamsError("message.parts: the message has no text")
    if message.role != Role.ROLE_USER:
        raise InvalidParamsError("message.role: send messages of the user")
    try:
        options = parse(Options, metadata).model_dump(exclude_none=True)
    except RequestError as error:
        raise InvalidParamsError(f"metadata.{error}") from error
    sampling = {name: value for name, value in options.items() if name != "show_conversation"}
    messages = (*earlier, ForeignMessage("user", text))
    return ForeignRequest("", messages, body=options, unused=sampling)


async def _publish(reply: Reply, updater: TaskUpdater) -> None:
    if reply.thought:
        await updater.add_artifact([new_text_part(reply.thought)], name=CONVERSATION)
    counts = {
        "finish": reply.finish,
        "prompt_tokens": reply.prompt_tokens,
        "sampled_tokens": reply.sampled_tokens,
    }
    await updater.add_artifact([new_text_part(reply.message.text)], name=ANSWER, metadata=counts)
    await updater.complete()


def _say(updater: TaskUpdater, text: str) -> Message:
    return updater.new_agent_message([new_text_part(text)])
