"""Prints the JSON schema of all that the server of `rolecall watch` answers."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from rolecall.watch import models


def write_schema() -> dict[str, Any]:
    """Return one schema with a definition for each model, as answers have them."""
    classes = [
        value
        for value in vars(models).values()
        if isinstance(value, type) and issubclass(value, models.Model) and value is not models.Model
    ]
    listed: list[tuple[type[BaseModel], Any]] = [(each, "serialization") for each in classes]
    _, schema = models_json_schema(listed, ref_template="#/definitions/{model}")
    return {
        "title": "Answers",
        "type": "object",
        "additionalProperties": False,
        "definitions": {name: plain(each) for name, each in schema["$defs"].items()},
        "properties": {
            each.__name__: {"$ref": f"#/definitions/{each.__name__}"} for each in classes
        },
        "required": [each.__name__ for each in classes],
    }


def plain(node: Any, *, is_field_map: bool = False) -> Any:
    """Return a schema without the titles of fields, and with tuples as draft 4 writes them."""
    if isinstance(node, list):
        return [plain(each) for each in node]
    if not isinstance(node, dict):
        return node
    changed = {
        name: plain(value, is_field_map=name == "properties")
        for name, value in node.items()
        if is_field_map or name not in ("title", "prefixItems", "default")
    }
    if "prefixItems" in node:
        changed |= {"items": plain(node["prefixItems"]), "additionalItems": False}
    return changed


if __name__ == "__main__":
    print(json.dumps(write_schema(), indent=1))
