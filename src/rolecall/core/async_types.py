"""Names what a call of an `async def` function returns."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")

Work = Coroutine[Any, Any, Result]  # an `async def` that was called, and that nobody awaits yet
