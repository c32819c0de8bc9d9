"""One word for one thing: no key, metric, name, message or page holds a replaced word."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel

from rolecall.config import registry
from rolecall.config.schema import Config

ROOT = Path(__file__).resolve().parents[2]
Found = tuple[str, str]  # where it stands, and what stands there

# kind -> {pattern: the word to write instead}
WORDS = {
    "key": {
        r"^ids_": "tokens",
        r"^past$": "opponent_pool",
        r"^passes$": "epochs",
        r"^copy$": "separate_weights",
        r"^refuses?$|^admits?$": "filters_groups",
    },
    "metric": {
        r"/ids$|ids_per_s": "tokens",
        r"/passes$": "epochs",
        r"/refused_groups": "filtered_groups",
        r"stages?$": "joint_steps",
    },
    "name": {
        r"^Quiet$": "IdleBarrier",
        r"^Stages?$": "RolloutContext, or joint steps",
        r"^Drawing$": "TaskSampler",
        r"^Decoder$": "Scheduler",
        r"^Branches$": "PrefixTreeAttention",
        r"^Lines$": "BatchState",
        r"^_?admit(s|ted)$": "keep_group",
        r"elsewhere": "say where",
    },
    "text": {
        r"\bids/s\b": "tokens/s",
        r"\b([Ss]ampled|[Tt]rained|[Mm]ost) ids?\b": "tokens",
        r"\b(pace|agent/\w+)/(sampled_)?ids\w*": "tokens",
        r"\bids_per_batch\b": "tokens_per_batch",
        r"\bpolicies\.\w+\.past\b": "opponent_pool",
        r"\bengine\.copy\b": "engine.separate_weights",
        r"\b[Pp]asses over the turns\b": "epochs",
        r"\brolecall\.elsewhere\b": "rolecall.importers",
        r"\brolecall\.habits\b": "rolecall_lab.tiny.demonstrations",
        r"\b(an earlier|past) sel(f|ves)\b|\bweights of the past\b": "earlier weights",
        r"\bcomes? in[,;:].* go(es)? out\b": "a sentence with a verb",
    },
    "first line": {
        r"\bin\b[,;:].*\bout\b": "a sentence with a verb that says what the module is for",
        r"^(Who|What|How|Where|Which) ": "a sentence with a verb that says what the module is for",
    },
}
# file -> the kinds that it may break, because it tells what was called how before
HISTORY = {
    "docs/decisions.md": {"text"},
    "CHANGELOG.md": {"text"},
    "src/rolecall/config/errors.py": {"text"},  # its table of renamed keys
}


def offences(kind: str, found: Iterator[Found]) -> list[str]:
    """What of the found texts holds a replaced word, with the word to write instead."""
    return [
        f"{place}: {text[:80]!r}: write {instead}"
        for place, text in found
        for pattern, instead in WORDS[kind].items()
        if kind not in HISTORY.get(place.split(":")[0], set()) and re.search(pattern, text)
    ]


def sections(model: type[BaseModel], place: str) -> Iterator[Found]:
    """The keys of a config class and of all classes in its fields."""
    for name, field in model.model_fields.items():
        yield f"{place}.{name}", name
        for inner in models_in(field.annotation):
            yield from sections(inner, f"{place}.{name}")


def models_in(annotation: object) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from models_in(part)


def keys() -> Iterator[Found]:
    yield from sections(Config, "config")
    for name in registry.BUILT_IN["algorithm"]:
        algorithm = registry.resolve("algorithm", name, key="algorithm")
        yield from sections(algorithm, f"algorithm {name}")


def modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted((ROOT / "src").rglob("*.py")):
        yield str(path.relative_to(ROOT)), ast.parse(path.read_text())


def metrics() -> Iterator[Found]:
    """String literals `area/name`, placeholders of f-strings written as `X`."""
    for path, tree in modules():
        for node in ast.walk(tree):
            text = text_of(node)
            if re.fullmatch(r"[a-z_X]+(/[\w]+)+", text):
                yield f"{path}:{getattr(node, 'lineno', 0)}", text


def text_of(node: ast.AST) -> str:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) or "X" for part in node.values)
    return ""


def names() -> Iterator[Found]:
    for path, tree in modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{path}:{node.lineno}", node.name


def first_lines() -> Iterator[Found]:
    for path, tree in modules():
        yield path, (ast.get_docstring(tree) or "").split("\n\n")[0].replace("\n", " ")


def texts() -> Iterator[Found]:
    """What people read: docstrings, messages, and the pages of the documentation."""
    for path, tree in modules():
        for node in ast.walk(tree):
            if " " in (text := text_of(node)):
                yield f"{path}:{getattr(node, 'lineno', 0)}", text
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for number, line in enumerate(page.read_text().splitlines(), 1):
            yield f"{page.relative_to(ROOT)}:{number}", line


FOUND = {
    "key": keys, "metric": metrics, "name": names, "text": texts, "first line": first_lines,
}  # fmt: skip


@pytest.mark.parametrize("kind", WORDS)
def test_no_replaced_word_occurs(kind):
    found = list(FOUND[kind]())
    assert len(found) > 50  # it was looked for
    assert offences(kind, iter(found)) == []


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("key", "past"),
        ("key", "ids_per_batch"),
        ("key", "passes"),
        ("metric", "pace/sampled_ids_per_s"),
        ("metric", "agent/X/ids"),
        ("metric", "rollout/refused_groups"),
        ("name", "Quiet"),
        ("name", "Stages"),
        ("name", "people_elsewhere"),
        ("text", "It samples 900 ids/s on two cores."),
        ("text", "Log-probs of the sampled ids."),
        ("text", "`policies.X.past` makes one of them play old weights."),
        ("text", "A row comes in, a task goes out."),
        ("first line", "Turns in, advantages out."),
        ("first line", "How an agent's words become tokens."),
    ],
)
def test_a_planted_word_is_found(kind, text):
    assert offences(kind, iter([("planted.py:1", text)])) != []


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("key", "opponent_pool"),
        ("key", "epochs"),
        ("metric", "pace/tokens_per_s"),
        ("name", "IdleBarrier"),
        ("text", "The ids of tasks are unique; a test passes over the network."),
        ("first line", "Reads a file of public maths rows and makes tasks of them."),
    ],
)
def test_words_of_the_field_are_left_alone(kind, text):
    assert offences(kind, iter([("planted.py:1", text)])) == []
