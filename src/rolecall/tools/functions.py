"""Makes a tool that an agent can call of an annotated function.

@tool
def add(a: int, b: int) -> str:
    'The sum of two whole numbers.'
    return str(a + b)
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, TypeVar, overload

from pydantic import ValidationError

from rolecall.config.registry import options_model
from rolecall.config.user_code_location import UserCallable
from rolecall.core.interfaces.tool import Tool, ToolError

Result = TypeVar("Result")


@overload
def tool(function: UserCallable, *, ends_itself: bool = False) -> Tool: ...
@overload
def tool(*, ends_itself: bool) -> Callable[[UserCallable], Tool]: ...
def tool(
    function: UserCallable | None = None, *, ends_itself: bool = False
) -> Tool | Callable[[UserCallable], Tool]:
    """Make a tool of a function: its name, docstring and annotations say what it is.

    A plain function runs in a thread of its own, so that it never holds up other episodes. Wrong
    arguments are a ToolError that names them. `ends_itself`: it has limits of its own, and an
    agent's `timeout_s` does not end it.
    """
    if function is None:
        return partial(tool, ends_itself=ends_itself)
    described = inspect.getdoc(function)
    if not described:
        raise ValueError(f"tool {function.__name__!r} has no docstring to tell agents what it does")
    model = options_model(function, skip=0)

    @wraps(function)
    async def call(**arguments: Any) -> str:
        try:
            checked = model(**arguments)
        except ValidationError as error:
            wrong = error.errors()[0]
            path = ".".join(map(str, wrong["loc"]))
            raise ToolError(f"argument {path!r}: {wrong['msg'].lower()}") from error
        values = {name: getattr(checked, name) for name in type(checked).model_fields}
        if inspect.iscoroutinefunction(function):
            return str(await function(**values))
        return str(await run_in_thread(lambda: function(**values)))

    schema = model.model_json_schema()
    properties = {
        name: {key: value for key, value in field.items() if key != "title"}
        for name, field in schema.get("properties", {}).items()
    }
    parameters = {"type": "object", "properties": properties}
    if "$defs" in schema:
        parameters["$defs"] = schema["$defs"]
    parameters["required"] = schema.get("required", [])
    text = " ".join(described.split())
    return Tool(function.__name__, text, parameters, call, ends_itself=ends_itself)


async def run_in_thread(work: Callable[[], Result]) -> Result:
    """Run blocking work. A thread that never ends is left behind and cannot fill a pool."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Result] = loop.create_future()
    context = contextvars.copy_context()

    def settle(result: Any, error: BaseException | None) -> None:
        if done.done():  # the caller has given up
            return
        if error is None:
            done.set_result(result)
        else:
            done.set_exception(error)

    def run() -> None:
        result, error = None, None
        try:
            result = context.run(work)  # so that what it writes is noted on its turn
        except BaseException as raised:
            # A StopIteration cannot be set on a future; the episode must not hang for it.
            stops = isinstance(raised, StopIteration)
            error = RuntimeError("StopIteration") if stops else raised
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, daemon=True).start()
    return await done
