"""Runs a user's function in forks of a process that has imported what the function needs.

    python warm_worker.py SOCKET FILE FUNCTION

Any Python runs it, so it imports nothing of rolecall. Each connection to the socket is one call: a
line of JSON comes with `environment` and `task`, a line with the `pid` of the fork goes back, then
one with what the function `returned`, or the `error`. The modules that FILE names are imported
once. FILE itself is executed in each fork, behind its environment, as many files make their client
when they are imported.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import ctypes
import importlib
import inspect
import json
import os
import signal
import socket
import sys
import traceback
from pathlib import Path

PR_SET_PDEATHSIG = 1


def main() -> None:
    address, file, function = sys.argv[1:]
    end_with_parent()
    sys.path.insert(0, str(Path(file).resolve().parent))
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(1024)
    print(json.dumps({"problem": preload(file, function)}), flush=True)
    signal.signal(signal.SIGCHLD, lambda *_: reap())
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            serve(connection, file, function)
        connection.close()


def end_with_parent() -> None:
    """Let the kernel kill this process when the one that started it ends."""
    with contextlib.suppress(OSError, AttributeError):  # only Linux can
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def reap() -> None:
    """Take note of the forks that have ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def preload(file: str, function: str) -> str:
    """Import the modules that a file imports; returns what is wrong with it, or ""."""
    try:
        tree = ast.parse(Path(file).read_text())
    except (OSError, SyntaxError, ValueError) as error:
        return f"{file} cannot be read: {error}"
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


def serve(connection: socket.socket, file: str, function: str) -> None:
    """Call the function once, and end the process."""
    status = 1
    try:
        end_with_parent()
        os.setsid()
        stream = connection.makefile("rw", encoding="utf-8")
        call_data = json.loads(stream.readline())
        write(stream, {"pid": os.getpid()})
        os.environ.update(call_data["environment"])
        write(stream, call(file, function, call_data["task"]))
        status = 0
    except BaseException:  # nothing of the parent's may run in the fork
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


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


def write(stream: object, data: dict[str, object]) -> None:
    stream.write(json.dumps(data) + "\n")  # type: ignore[attr-defined]
    stream.flush()  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
