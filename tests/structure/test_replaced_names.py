"""What a test replaces is there: tests that run seldom would not notice that it was renamed."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]


def replaced(tree: ast.Module) -> Iterator[tuple[str, str, str]]:
    """Yield module, name and attribute of each `monkeypatch.setattr(name, "attribute", ...)`."""
    imported = {
        alias.asname or alias.name: (node.module, alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rolecall")
        for alias in node.names
    }
    for node in ast.walk(tree):
        match node:
            case ast.Call(
                func=ast.Attribute(attr="setattr"),
                args=[ast.Name(id=name), ast.Constant(value=str(attribute)), *_],
            ) if name in imported:
                yield *imported[name], attribute


def test_what_seldom_run_tests_replace_is_there():
    missing, number = [], 0
    for file in sorted(TESTS.rglob("test_*.py")):
        text = file.read_text()
        if "mark.alone" not in text and "mark.evidence" not in text:
            continue
        for module, name, attribute in replaced(ast.parse(text)):
            number += 1
            owner = importlib.import_module(module)
            owner = getattr(owner, name, None) or importlib.import_module(f"{module}.{name}")
            if not hasattr(owner, attribute):
                missing.append(f"{file.relative_to(TESTS)}: {name}.{attribute}")
    assert number > 10
    assert missing == []
