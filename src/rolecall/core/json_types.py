"""Names the shapes of data that comes from files, servers and configs."""

from __future__ import annotations

from typing import Any

JsonObject = dict[str, Any]  # an object of JSON or YAML
JsonValue = str | int | float | bool | list[Any] | dict[str, Any] | None  # whatever JSON can hold
Options = dict[str, Any]  # keyword options, such as those that a config gives to a class
Record = dict[str, Any]  # a line of metrics.jsonl, or what an evaluation or a report came to
State = dict[str, Any]  # what `state_dict` returns for a checkpoint
