"""Runs a user's function in forks of a process that has imported what the function needs.

A script of `runtime/forking/fork_server.py` with the arguments FILE and FUNCTION. Each connection
is one call: a line of JSON comes with `environment` and `task`, then one goes back with what the
function `returned`, or the `error`. The modules that FILE names are imported once. FILE itself is
executed in each fork, behind its environment, as many files make their client when they are
imported.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import importlib
import inspect
import json
import os
import sys
import traceback
from pathlib import Path
from typing import TextIO


def preload(file: str, function: str) -> str:
    """Import the modules that a file imports; returns what is wrong with it, or ""."""
    try:
        tree = ast.parse(Path(file).read_text())
    except (OSError, SyntaxError, ValueError) as error:
        return f"{file} cannot be read: {error}"
    sys.path.insert(0, str(Path(file).resolve().parent))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    if not any(isinstance(node, functions) and node.name == function for node in tree.body):
        return f"{file} has no function {function!r}"
    for node in tree.body:
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [node.module]
        for name in names:
            try:
                module = importlib.import_module(name)
            except ModuleNotFoundError as error:
                return f"{file}: {error}; install it, or name the Python that has it"
            except Exception:  # a module that needs the environment of an episode
                continue
            if isinstance(node, ast.ImportFrom):  # some packages import their parts when asked
                for alias in node.names:
                    with contextlib.suppress(Exception):
                        getattr(module, alias.name, None)
    return ""


def serve(stream: TextIO, file: str, function: str) -> None:
    """Call the function once."""
    call_data = json.loads(stream.readline())
    os.environ.update(call_data["environment"])
    stream.write(json.dumps(call(file, function, call_data["task"])) + "\n")
    stream.flush()


def call(file: str, function: str, task: dict[str, object]) -> dict[str, object]:
    """Return what the function returned, or its error."""
    try:
        module = importlib.import_module(Path(file).stem)
        if not Path(str(module.__file__)).samefile(file):
            return {"error": f"ImportError: {file} has the name of {module.__file__}; rename it"}
        answer = getattr(module, function)(task)
        if inspect.isawaitable(answer):
            answer = asyncio.run(wait_for(answer))
    except (Exception, SystemExit) as error:
        return {"error": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
    if answer is not None and not isinstance(answer, str | int | float | dict):
        kind = type(answer).__name__
        return {"error": f"TypeError: {function} returns a {kind}; return a text, a dict or None"}
    try:
        json.dumps(answer)
    except (TypeError, ValueError) as error:
        return {"error": f"{type(error).__name__}: {function} returns what is no JSON: {error}"}
    return {"returned": answer}


async def wait_for(answer: object) -> object:
    return await answer  # type: ignore[misc]
