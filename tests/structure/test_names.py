"""Few names and docstrings read otherwise than those of other libraries: they are counted."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.sources import source_files

# Variables that say nothing of what they hold.
VAGUE = {
    "asked", "found", "given", "known", "left", "made", "part", "place", "said", "taken", "told",
    "wanted",
}  # fmt: skip
# A first line that begins in the middle of a sentence.
FRAGMENT = re.compile(
    r"(Of|The same|As|By|Whether|Where|In|With|To|From|For|That|Which|What|Who|How|Those|Instead)\b"
)
# A function named by what it belongs to, or by a bare participle, and not by what it does.
PARTICIPLE = re.compile(r"[a-z]*(ed|wn|told|said|made|kept|found|given|taken|sent|met|put|built)")
MOST_VAGUE = 25  # sides called left, fields and parameters
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def trees() -> Iterator[tuple[str, ast.Module]]:
    for name, file in source_files():
        yield name, ast.parse(file.read_text())


def vague_variables(tree: ast.AST) -> list[str]:
    names = (node for node in ast.walk(tree) if isinstance(node, ast.Name))
    return [node.id for node in names if isinstance(node.ctx, ast.Store) and node.id in VAGUE]


def fragments(tree: ast.AST) -> list[str]:
    documented = (node for node in ast.walk(tree) if isinstance(node, DOCUMENTED))
    texts = (ast.get_docstring(node) or "" for node in documented)
    return [text for text in texts if FRAGMENT.match(text)]


def test_few_variables_are_called_found_or_told():
    """Where `left` is a side and `place` one on a list, they say what they hold."""
    counted = {name: count for name, tree in trees() if (count := len(vague_variables(tree)))}
    assert sum(counted.values()) <= MOST_VAGUE, counted


def test_few_docstrings_begin_in_the_middle_of_a_sentence():
    counted = {name: texts for name, tree in trees() if (texts := fragments(tree))}
    assert sum(map(len, counted.values())) <= 2, counted


def is_nameless(function: str) -> bool:
    name = function.lstrip("_")
    return name.endswith("_of") or name.startswith("of_") or bool(PARTICIPLE.fullmatch(name))


def test_functions_are_verbs():
    """Public functions; `put`, `feed` and `spawn` are verbs that look like participles."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    counted = {
        f"{name}:{node.name}"
        for name, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, functions) and not node.name.startswith("_") and is_nameless(node.name)
    }
    assert len(counted) <= 5, counted


@pytest.mark.parametrize(
    ("function", "nameless"),
    [("seats_of", True), ("of_run", True), ("told", True), ("assign_gpus", False)],
)
def test_a_name_is_judged(function, nameless):
    assert is_nameless(function) == nameless


@pytest.mark.parametrize(
    ("code", "vague", "cut"),
    [
        ("found = 1", 1, 0),
        ("rows = [part for part in x]", 1, 0),
        ("def f():\n    'Of the newest row.'", 0, 1),
        ("def f():\n    'Return the newest row.'\n    rows = 1", 0, 0),
    ],
)
def test_what_is_counted(code, vague, cut):
    tree = ast.parse(code)
    assert (len(vague_variables(tree)), len(fragments(tree))) == (vague, cut)
