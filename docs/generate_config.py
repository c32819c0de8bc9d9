"""The config classes in, docs/config.md out: `python docs/generate_config.py`."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Union, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from rolecall.algorithms.drmas import DrMas
from rolecall.algorithms.grpo import Grpo
from rolecall.config import Config

HEAD = """# Config keys

Generated from the config classes by `python docs/generate_config.py`; do not edit. Any key can be
overridden on the command line by its dotted name: `trainer.steps=5`.
"""


def page() -> str:
    """The whole document."""
    parts = [HEAD, *_sections("", Config)]
    for model in (Grpo, DrMas):
        parts.append(_table(f"algorithm: {model.__name__.lower()}", model))
    return "\n".join(parts)


def _sections(prefix: str, model: type[BaseModel]) -> list[str]:
    parts = [_table(prefix or "(top)", model)]
    for name, field in model.model_fields.items():
        inner, named = _inner(field.annotation)
        if inner is not None and inner.__name__ != "Named":
            place = f"{prefix}.{name}" if prefix else name
            parts += _sections(f"{place}.NAME" if named else place, inner)
    return parts


def _inner(annotation: object) -> tuple[type[BaseModel] | None, bool]:
    """The section behind a key, and whether it stands under names that the user chooses."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, False
    if get_origin(annotation) is dict:
        return _inner(get_args(annotation)[1])[0], True
    if get_origin(annotation) in (Union, types.UnionType):
        return next((found for a in get_args(annotation) if (found := _inner(a))[0]), (None, False))
    return None, False


def _table(place: str, model: type[BaseModel]) -> str:
    lines = [f"\n## {place}\n", "| key | default | meaning |", "|---|---|---|"]
    for name, field in model.model_fields.items():
        meaning = " ".join((field.description or "").split()).replace("|", "\\|")
        lines.append(f"| `{name}` | {_default(field)} | {meaning} |")
    return "\n".join(lines)


def _default(field) -> str:
    if field.default is PydanticUndefined:
        return "required"
    if isinstance(field.default, BaseModel):
        return "see below"
    return f"`{field.default}`"


if __name__ == "__main__":
    Path(__file__).with_name("config.md").write_text(page() + "\n")
