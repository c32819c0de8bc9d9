"""Forks a process for each connection, after it has imported once what all of them need.

    python fork_server.py SOCKET SCRIPT ARGUMENT ...

Any Python runs it, so it imports nothing of rolecall. SCRIPT defines `preload(*arguments)`, which
returns what is wrong or "", and `serve(stream, *arguments)`, which a fork calls. The first line
that a fork writes into its connection holds its `pid`.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import json
import os
import signal
import socket
import sys
import traceback
from pathlib import Path
from types import ModuleType

PR_SET_PDEATHSIG = 1


def main() -> None:
    address, file, *arguments = sys.argv[1:]
    end_with_parent()
    sys.path[:] = [folder for folder in sys.path if folder != str(Path(__file__).parent)]
    script = load(file)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(address)
    listener.listen(1024)
    print(json.dumps({"problem": script.preload(*arguments)}), flush=True)
    signal.signal(signal.SIGCHLD, lambda *_: reap())
    while True:
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            serve(connection, script, arguments)
        connection.close()


def end_with_parent() -> None:
    """Let the kernel kill this process when the one that started it ends."""
    with contextlib.suppress(OSError, AttributeError):  # only Linux can
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def load(file: str) -> ModuleType:
    """Import a script from its file."""
    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    assert spec is not None, "a file of Python has a loader"
    assert spec.loader is not None, "a file of Python has a loader"
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


def reap() -> None:
    """Take note of the forks that have ended."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def serve(connection: socket.socket, script: ModuleType, arguments: list[str]) -> None:
    """Let the script serve one connection, and end the process."""
    status = 1
    try:
        end_with_parent()
        os.setsid()
        stream = connection.makefile("rw", encoding="utf-8")
        stream.write(json.dumps({"pid": os.getpid()}) + "\n")
        stream.flush()
        script.serve(stream, *arguments)
        status = 0
    except BaseException:  # nothing of the parent's may run in the fork
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main()
