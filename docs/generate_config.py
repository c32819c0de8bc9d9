"""The config classes in, docs/config.md out: `python docs/generate_config.py`."""

from __future__ import annotations

import sys
import types
from pathlib import Path
from typing import Annotated, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from rolecall.algorithms.base import Algorithm
from rolecall.algorithms.losses import BaseLoss
from rolecall.algorithms.policy_loss import ClippedLoss, PolicyLoss
from rolecall.config import registry
from rolecall.config.schema import Config

sys.path.insert(0, str(Path(__file__).parent))
from page_text import key_meanings, shown

HEAD = """# Config keys

Generated from the config classes by `python docs/generate_config.py`; do not edit. Any key can be
overridden on the command line by its dotted name: `trainer.steps=5`.
"""
POLICY_KEYS = "the keys of [a policy loss](#algorithm-name-with-a-policy-loss)"


def page() -> str:
    """The whole document."""
    parts = [HEAD, *_sections("", Config)]
    parts.append(_table("algorithm: NAME, whatever the name", BaseLoss))
    names = registry.BUILT_IN["algorithm"]
    kinds = {name: registry.resolve("algorithm", name, key="algorithm") for name in names}
    others = [f"`{name}`" for name, kind in kinds.items() if not issubclass(kind, PolicyLoss)]
    own, said = _own(ClippedLoss, BaseLoss), f"These keys are of all but {', '.join(others)}."
    parts.append(_table("algorithm: NAME, with a policy loss", ClippedLoss, own, said))
    parts += [_own_table(name, kind) for name, kind in kinds.items()]
    return "\n".join(parts)


def _own_table(name: str, model: type[Algorithm]) -> str:
    """The keys that an algorithm adds or changes, and which of a policy loss it does not have."""
    said = shown(" ".join((model.__doc__ or "").split()))
    lacks = [f"`{key}`" for key in ClippedLoss.model_fields if key not in model.model_fields]
    if lacks:
        said += f" Without {', '.join(lacks) if issubclass(model, PolicyLoss) else POLICY_KEYS}."
    return _table(f"algorithm: {name}", model, _own(model, ClippedLoss), said)


def _own(model: type[BaseModel], common: type[BaseModel]) -> dict[str, FieldInfo]:
    """The fields that `common` does not have, or has with another default."""
    fields = common.model_fields
    return {
        key: field
        for key, field in model.model_fields.items()
        if key not in fields or _default(field) != _default(fields[key])
    }


def _sections(prefix: str, model: type[BaseModel]) -> list[str]:
    parts = [_table(prefix or "(top)", model)]
    for name, field in model.model_fields.items():
        if kinds := _kinds(field.annotation):
            if not prefix:  # those of a policy are the same
                parts += [_kind_table(name, kind, kinds[0]) for kind in kinds]
            continue
        inner, named = _inner(field.annotation)
        if inner is not None and inner.__name__ != "Named":
            place = f"{prefix}.{name}" if prefix else name
            parts += _sections(f"{place}.NAME" if named else place, inner)
        if get_origin(field.annotation) is list and inner is None:
            [item] = get_args(field.annotation)
            if isinstance(item, type) and issubclass(item, BaseModel) and item.__name__ != "Named":
                parts += _sections(f"{name}.NUMBER", item)
    return parts


def _kinds(annotation: object) -> list[type[BaseModel]]:
    """The sections of which `name` chooses one."""
    options = [kind for kind in get_args(annotation) if kind is not types.NoneType]
    while len(options) == 1 or get_origin(annotation) is Annotated:
        annotation = options[0]
        options = list(get_args(annotation))
    found = [get_args(kind)[0] if get_origin(kind) is Annotated else kind for kind in options]
    sections = [kind for kind in found if isinstance(kind, type) and issubclass(kind, BaseModel)]
    return sections if len(sections) > 1 else []


def _kind_table(key: str, kind: type[BaseModel], first: type[BaseModel]) -> str:
    """All keys of the first kind, and what the others have beside its."""
    field = kind.model_fields["name"]
    chosen = "path/to/file.py:NAME" if field.is_required() else field.default
    said, fields = " ".join((kind.__doc__ or "").split()), kind.model_fields
    if kind is not first and issubclass(kind, first):
        said += f" Keys of `{first.model_fields['name'].default}`, and:"
        fields = {k: f for k, f in fields.items() if k == "name" or k not in first.model_fields}
    return _table(f"{key}: {chosen}", kind, fields, said)


def _inner(annotation: object) -> tuple[type[BaseModel] | None, bool]:
    """The section behind a key, and whether it stands under names that the user chooses."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, False
    if get_origin(annotation) is dict:
        return _inner(get_args(annotation)[1])[0], True
    if get_origin(annotation) in (Union, types.UnionType):
        return next((found for a in get_args(annotation) if (found := _inner(a))[0]), (None, False))
    return None, False


def _table(place: str, model: type[BaseModel], fields=None, said: str = "") -> str:
    lines = [f"\n## {place}\n", *([said, ""] if said else [])]
    lines += ["| key | default | meaning |", "|---|---|---|"]
    fields, meanings = model.model_fields if fields is None else fields, key_meanings(model)
    for name, field in fields.items():
        meaning = shown(" ".join(meanings.get(name, "").split())).replace("|", "\\|")
        lines.append(f"| `{field.alias or name}` | {_default(field)} | {meaning} |")
    return "\n".join(lines if fields else lines[:-2])


def _default(field) -> str:
    if field.default is PydanticUndefined:
        return "required"
    if isinstance(field.default, BaseModel):
        return "see below"
    return f"`{field.default}`" if field.default != "" else '`""`'


if __name__ == "__main__":
    Path(__file__).with_name("config.md").write_text(page() + "\n")
