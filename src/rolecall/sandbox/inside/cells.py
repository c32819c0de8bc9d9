"""Runs the cells of a notebook, one JSON line each, and reports what each printed and showed.

One process runs all cells of a notebook in one namespace, as a Jupyter kernel does: with `display`,
`await` at the top level and the figures of pyplot, but without IPython's magics and `!`.
"""

from __future__ import annotations

import ast
import asyncio
import base64
import inspect
import io
import json
import os
import sys
import traceback
import types
from typing import Any

Names = dict[str, Any]  # what the cells have defined


STREAMS = {"stdout": 1, "stderr": 2}
FORMS = {  # what a value may say of itself: IPython's names
    "text/html": "_repr_html_", "text/markdown": "_repr_markdown_", "text/latex": "_repr_latex_",
    "image/svg+xml": "_repr_svg_", "image/png": "_repr_png_", "image/jpeg": "_repr_jpeg_",
}  # fmt: skip
LOOP = asyncio.new_event_loop()


def main() -> None:
    inbox, outbox = os.fdopen(os.dup(0), newline="\n"), os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    most = json.loads(inbox.readline())["output_bytes"]
    for number, line in enumerate(inbox, start=1):
        outbox.write(json.dumps(play(json.loads(line), number, module.__dict__, most)) + "\n")
        outbox.flush()


def play(code: str, number: int, names: Names, most: int) -> dict[str, Any]:
    """Run one cell; what it or its child processes print goes through files of their own."""
    files = {name: open_unnamed() for name in STREAMS}
    for name, stream in STREAMS.items():
        os.dup2(files[name], stream)
    shown: list[dict[str, str]] = []
    error = []
    names["display"] = lambda *values: shown.extend(bundle(value, most) for value in values)
    try:
        value = run(code, f"<cell {number}>", names)
        if value is not None:
            names["display"](value)
        shown += figures(most)
    except BaseException as raised:  # SystemExit ends a cell, not the notebook
        lines = traceback.format_exception(raised.with_traceback(user_traceback(raised)))
        kind, text = type(raised).__name__, str(raised)
        error.append({"ename": kind, "evalue": text, "traceback": lines})
    sys.stdout.flush()
    sys.stderr.flush()
    streams = {name: keep_both_ends(files[name], most) for name in STREAMS}
    for file in files.values():
        os.close(file)
    return {**streams, "display": shown, "error": error}


def run(code: str, name: str, names: Names) -> Any:
    """Return the value of the last line if it is an expression, else None."""
    body = ast.parse(code, name)
    last = body.body.pop() if body.body and isinstance(body.body[-1], ast.Expr) else None
    finish(compile(body, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
    if last is None:
        return None
    assert isinstance(last, ast.Expr)
    expression = ast.Expression(last.value)
    return finish(compile(expression, name, "eval", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)


def finish(code: types.CodeType, names: Names) -> Any:
    value = eval(code, names)
    if code.co_flags & inspect.CO_COROUTINE:
        return LOOP.run_until_complete(value)
    return value


def bundle(value: Any, most: int) -> dict[str, str]:
    """Return a value's forms by MIME type; forms longer than `most` are left out."""
    formats = {"text/plain": repr(value)[:most]}
    for kind, name in FORMS.items():
        try:
            content = getattr(type(value), name)(value)
        except Exception:  # it has no such form, or cannot say it
            continue
        content = base64.b64encode(content).decode() if isinstance(content, bytes) else content
        if isinstance(content, str) and len(content) <= most:
            formats[kind] = content
    return formats


def figures(most: int) -> list[dict[str, str]]:
    """Return the open figures of pyplot, which are then closed."""
    pyplot = sys.modules.get("matplotlib.pyplot")
    if pyplot is None:
        return []
    pictures = []
    for number in pyplot.get_fignums():
        held = io.BytesIO()
        figure = pyplot.figure(number)
        figure.savefig(held, format="png")
        pictures.append({"text/plain": repr(figure)})
        picture = base64.b64encode(held.getvalue()).decode()
        if len(picture) <= most:
            pictures[-1]["image/png"] = picture
    pyplot.close("all")
    return pictures


def user_traceback(raised: BaseException) -> types.TracebackType | None:
    """Return the traceback without the frames of this file."""
    trace = raised.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace


def open_unnamed() -> int:
    return os.open("/tmp", os.O_TMPFILE | os.O_RDWR | os.O_APPEND, 0o600)


def keep_both_ends(file: int, most: int) -> str:
    size = os.fstat(file).st_size
    if size <= most:
        return os.pread(file, size, 0).decode(errors="replace")
    head, tail = os.pread(file, most // 2, 0), os.pread(file, most // 2, size - most // 2)
    gap = f"\n... {size - 2 * (most // 2)} bytes omitted ...\n"
    return head.decode(errors="replace") + gap + tail.decode(errors="replace")


if __name__ == "__main__":
    main()
