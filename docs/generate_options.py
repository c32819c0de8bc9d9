"""What a config can name in, docs/options.md out: `python docs/generate_options.py`."""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
import types
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from rolecall.agents import parsers
from rolecall.config import registry
from rolecall.core.interfaces.environment import Observation
from rolecall.core.types import Episode, Message, Task, Turn
from rolecall.environments.math import rows
from rolecall.workflows.base import Workflow

sys.path.insert(0, str(Path(__file__).parent))
from page_text import key_meanings, shown

HEAD = """# Options of what a config can name

Generated from the code by `python docs/generate_options.py`; do not edit. A name alone takes every
default; `{name: NAME, option: value}` sets some. A name with a colon is your own code:
`path/to/mine.py:name`. The keys of a config itself are in [config.md](config.md).
"""
KINDS = {  # kind -> title, where it stands in a config, arguments that are no options
    "workflow": ("Workflows", "`workflow: {name: NAME, ...}`", 3),
    "environment": ("Environments", "`environment: {name: NAME, ...}`", 0),
    "reward": ("Rewards", "`rewards: {NAME: weight}` or `rewards: {NAME: {weight: 1, ...}}`", 0),
    "tool": ("Tools", "`team.AGENT.tools.use: [NAME, {name: NAME, ...}]`", 0),
    "tracker": ("Trackers", "`trackers: [NAME, {name: NAME, ...}]`", 1),
}
PARSERS = """
## Parsers

Stand at `team.AGENT.parser`, by default the workflow's for the role. None has a short name: a
parser is a function that is named by its import path, `path/to/mine.py:name` or one of these. It
is given a [turn](#turn) and returns what it read, or None where the turn does not have the form
that it should: then the turn is invalid, and `team.AGENT.invalid_penalty` is taken from its reward.

| parser | what it reads |
|---|---|"""
ALGORITHMS = """
## Algorithms

Stand at `algorithm: {name: NAME, ...}` and `team.AGENT.algorithm`. Their keys, with those that all
of them share, are in [config.md](config.md#algorithm-name-whatever-the-name).

| algorithm | what it is |
|---|---|"""
RETURNED = """
## What your own code returns

`World.score(episode)` and a reward `async def reward(episode, world)` return numbers by agent, or
by `"team"`, which is everybody: `{"team": 1.0}`, `{"solver": 0.5, "verifier": 0.0}`, or `{}` for
nothing. An agent's outcome is its own number plus the team's. A score is between 0 and 1, and
evaluations count it; a reward may be any finite number, and its weight multiplies it. Any other
type, a number that is not finite and an agent that is not in the team are errors that name your
function.

`score` alone pays nobody: the reward `correct` (by default the only one, with weight 1) pays what
it found. A reward may also write `turn.rewards["name"] = 0.5` for what a single action earned; no
weight multiplies that. A workflow returns the answer, a turn or a text; `turn.pay("name", 0.5)` in
it says what a turn earned, and replaces that agent's share of `correct`. What a world gave for an
action stands in `turn.world_rewards`, as `turn.world_rewards["step"] = seen.reward`.
A world with `step` and without `score` has the sum of these as its score, which pays nobody again.
`tasks(split)` returns a list of `Task`; `reset` and `step` of a world return an `Observation`. An
environment with the
attribute `splits = ("train", "validation", "test")` is asked for its own validation tasks where
`evaluation.validation` is set; otherwise they are held out of its train tasks.
"""
FILES = """
## Files of your own

`environment: {{name: math, train: my.jsonl, test: [other.parquet]}}` takes any file of rows: JSON
Lines, one JSON array, or parquet, each also gzipped; the first bytes say which. A row needs a
question and a truth, under the first of these columns that it has; a dot is a column inside of
another, and case does not matter.

| for | columns |
|---|---|
| question | {questions} |
| truth | {truths} |
| data source (else the file's name) | {sources} |
| id (else the file's name and the row's number) | {ids} |

All other columns are in `Task.info`. For example `{{"question": "1 + 1?", "answer": "2"}}`. Rows
without a question or a truth are left out and counted in one line; where most rows are so, that is
an error that names the file and the line. The other environments say in their own tables which
columns they read.
"""


def page() -> str:
    """The whole document."""
    parts = [HEAD]
    for kind, (title, place, skip) in KINDS.items():
        parts.append(f"\n## {title}\n\nStand at {place}.")
        for name in registry.BUILT_IN[kind]:
            parts.append(_section(kind, name, skip=skip))
    parts.append(PARSERS)
    for parser in (parsers.parse_boxed, parsers.parse_fence):
        told = _cell(inspect.getdoc(parser) or "")
        parts.append(f"| `{parser.__module__}:{parser.__name__}` | {told} |")
    parts.append(ALGORITHMS)
    for name in registry.BUILT_IN["algorithm"]:
        found = registry.resolve("algorithm", name, key="algorithm")
        told = f"{_first_of_file(found)} {inspect.getdoc(found) or ''}"
        parts.append(f"| `{name}` | {_cell(told)} |")
    parts += [RETURNED, FILES.format(**_columns())]
    parts.append("## Fields\n\nWhat workflows, worlds, rewards and algorithms are given.")
    for kept in (Task, Turn, Episode, Observation, Message):
        parts.append(_fields(kept))
    return "\n".join(parts) + "\n"


def _section(kind: str, name: str, *, skip: int) -> str:
    """One entry. Raises ValueError for an option without a meaning."""
    found = registry.resolve(kind, name, key=kind)
    call = found.play if isinstance(found, Workflow) else found
    lines = [f"\n### {kind}: {name}\n"]
    if not callable(call):  # a tool that is made already
        return "\n".join([*lines, f"`{found.signature}`", "", "No options."])
    alone = kind == "reward" and not isinstance(call, type)  # a function, without options
    fields = {} if alone else registry.options_model(call, skip=skip).model_fields
    said, meanings = paragraphs_and_meanings(call, frozenset(fields))
    told = [_first_of_file(call)] if kind == "workflow" else []
    lines += [shown("\n\n".join([*told, *said])), ""]
    if not fields:
        return "\n".join([*lines, "No options."])
    if missing := [option for option in fields if option not in meanings]:
        raise ValueError(f"{kind} {name}: no line `{missing[0]}: meaning` in its docstring")
    lines += ["| option | default | type | meaning |", "|---|---|---|---|"]
    asked = registry.list_chat_options(call)
    for option, field in fields.items():
        kind_of = "a policy" if option in asked else ""
        lines.append(_row(option, field, meanings[option], kind_of))
        section = field.annotation
        if isinstance(section, type) and issubclass(section, BaseModel):
            inner = key_meanings(section)
            for key, part in section.model_fields.items():
                lines.append(_row(f"{option}.{key}", part, inner[key]))
    return "\n".join(lines)


def _row(option: str, field: FieldInfo, meaning: str, kind_of: str = "") -> str:
    default = field.get_default(call_default_factory=True)
    if isinstance(default, BaseModel):
        default, kind_of = {}, "mapping"
    kind_of = kind_of or _type(field.annotation)
    return f"| `{option}` | {_default(default)} | `{kind_of}` | {_cell(meaning)} |"


def _first_of_file(call: Any) -> str:
    """The sentence that a file of one idea begins with."""
    module = inspect.getmodule(call)
    return " ".join(((module and module.__doc__) or "").split("\n\n")[0].split())


def paragraphs_and_meanings(call: Any, options: frozenset[str]) -> tuple[list[str], dict[str, str]]:
    """What docstrings say of the whole, and {option: meaning} of their lines `option: meaning`."""
    docs = [inspect.getdoc(call) or ""]
    if isinstance(call, type) and "__init__" in vars(call):
        docs.append(inspect.cleandoc(call.__init__.__doc__ or ""))
    paragraphs, meanings = [], {}
    for paragraph in "\n\n".join(docs).split("\n\n"):
        found = _meanings(paragraph)
        if found and found.keys() <= options:
            meanings |= found
        elif paragraph:
            paragraphs.append(" ".join(paragraph.split()))
    return paragraphs, meanings


def _meanings(paragraph: str) -> dict[str, str]:
    """ "a, b: both\n    of them\nc: one" -> {"a": "both of them", "b": .., "c": "one"}."""
    found: dict[str, str] = {}
    names: list[str] = []
    for line in paragraph.splitlines():
        start = re.match(r"((?:\w+, )*\w+): (.+)", line)
        if start:
            names = start[1].split(", ")
            found |= dict.fromkeys(names, start[2])
        elif line.startswith("    ") and names:
            found |= {name: f"{found[name]} {line.strip()}" for name in names}
        else:
            return {}
    return found


def _fields(kept: type) -> str:
    """A dataclass as a table, its comments as meanings."""
    lines = [f"\n### {kept.__name__}\n", shown(" ".join((kept.__doc__ or "").split())), ""]
    lines += ["| field | type | meaning |", "|---|---|---|"]
    source = textwrap.dedent(inspect.getsource(kept))
    code = source.splitlines()
    [node] = ast.parse(source).body
    assert isinstance(node, ast.ClassDef)
    for part in node.body:
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
            comment = code[part.end_lineno - 1][part.end_col_offset :].partition("#")[2].strip()
            kind = ast.unparse(part.annotation)
            lines.append(f"| `{part.target.id}` | `{_escaped(kind)}` | {_cell(comment)} |")
        elif isinstance(part, ast.FunctionDef) and not part.name.startswith("_"):
            arguments = [argument.arg for argument in part.args.args[1:]]
            is_property = any(ast.unparse(d) == "property" for d in part.decorator_list)
            name = part.name if is_property else f"{part.name}({', '.join(arguments)})"
            kind = _escaped(ast.unparse(part.returns)) if part.returns else ""
            lines.append(f"| `{name}` | `{kind}` | {_cell(ast.get_docstring(part) or '')} |")
    return "\n".join(lines)


def _columns() -> dict[str, str]:
    known = {"questions": rows.QUESTIONS, "truths": rows.TRUTHS, "sources": rows.SOURCES}
    listed = {**known, "ids": rows.IDS}
    return {name: ", ".join(f"`{column}`" for column in found) for name, found in listed.items()}


def _type(annotation: Any) -> str:
    """`list[str] | None`; of texts to choose from the texts; without modules and bounds."""
    arguments = get_args(annotation)
    if hasattr(annotation, "__metadata__"):
        return _type(arguments[0])
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        return " \\| ".join(map(_type, arguments))
    if origin is Literal:
        return " \\| ".join(_escaped(repr(argument)) for argument in arguments)
    if origin is not None:
        return f"{origin.__name__}[{', '.join(map(_type, arguments))}]"
    return "None" if annotation is type(None) else getattr(annotation, "__name__", str(annotation))


def _default(value: Any) -> str:
    return "required" if value is PydanticUndefined else f"`{_escaped(repr(value))}`"


def _cell(text: str) -> str:
    return _escaped(shown(" ".join(text.split())))


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    Path(__file__).with_name("options.md").write_text(page())
