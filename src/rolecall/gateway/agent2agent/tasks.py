"""Keeps the tasks of clients of A2A in memory, up to a bound."""

from __future__ import annotations

from collections.abc import Iterator

from rolecall.core.optional import needs
from rolecall.gateway.dialects.request import ForeignMessage

with needs("a2a", extra="a2a"):
    from a2a.helpers import get_artifact_text, get_message_text
    from a2a.server.context import ServerCallContext
    from a2a.server.tasks import InMemoryTaskStore
    from a2a.types import ListTasksRequest, Task, TaskState

ANSWER = "answer"  # name of the artifact with what the team answered
MOST_TASKS = 1000  # that have ended and are kept
MOST_BYTES = 64 << 20  # of tasks that have ended
ENDED = (
    TaskState.TASK_STATE_COMPLETED,
    TaskState.TASK_STATE_FAILED,
    TaskState.TASK_STATE_CANCELED,
    TaskState.TASK_STATE_REJECTED,
)


class NewestTasks(InMemoryTaskStore):
    """Holds tasks under way and the newest of those that have ended."""

    def __init__(self, most_tasks: int = MOST_TASKS, most_bytes: int = MOST_BYTES) -> None:
        super().__init__()
        self._most_tasks, self._most_bytes = most_tasks, most_bytes
        self._sizes: dict[str, int] = {}  # id of a task that has ended -> bytes, oldest first

    async def save(self, task: Task, context: ServerCallContext) -> None:
        """Keep a task; one that has ended may push the oldest ones out."""
        await super().save(task, context)
        if task.status.state not in ENDED:
            return
        self._sizes[task.id] = task.ByteSize()
        while len(self._sizes) > self._most_tasks or sum(self._sizes.values()) > self._most_bytes:
            oldest = next(iter(self._sizes))
            del self._sizes[oldest]
            await self.delete(oldest, context)

    async def read_conversation(
        self, context_id: str, context: ServerCallContext
    ) -> tuple[ForeignMessage, ...]:
        """Return what was asked and answered in a context, in the order of the answers."""
        completed = ListTasksRequest(
            context_id=context_id,
            status=TaskState.TASK_STATE_COMPLETED,
            page_size=self._most_tasks,
        )
        newest_first = (await self.list(completed, context)).tasks
        return tuple(message for task in reversed(newest_first) for message in _read_messages(task))


def _read_messages(task: Task) -> Iterator[ForeignMessage]:
    yield ForeignMessage("user", get_message_text(task.history[0]))
    for artifact in task.artifacts:
        if artifact.name == ANSWER:
            yield ForeignMessage("assistant", get_artifact_text(artifact))
