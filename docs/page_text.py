"""Text of docstrings and comments in, Markdown that shows all of it out.

Outside of code spans Markdown takes `<answer>` for markup, and a page would leave it out.
"""

from __future__ import annotations

import ast
import inspect
import re
from itertools import pairwise
from textwrap import dedent

from pydantic import BaseModel

CODE_SPAN = re.compile(r"(`+[^`]*`+)")


def shown(text: str) -> str:
    """`<a>` and <b> -> `<a>` and &lt;b>."""
    parts = CODE_SPAN.split(text)
    return "".join(part if part.startswith("`") else part.replace("<", "&lt;") for part in parts)


def key_meanings(model: type[BaseModel]) -> dict[str, str]:
    """The docstrings below the keys of a class and of those that it inherits from. Not pydantic's,
    which would read them, and all of our sources, whenever rolecall is imported."""
    found = {}
    for kind in reversed(model.__mro__[: model.__mro__.index(BaseModel)]):
        [section] = ast.parse(dedent(inspect.getsource(kind))).body
        for key, text in pairwise(section.body):
            if isinstance(key, ast.AnnAssign) and isinstance(text, ast.Expr):
                found[ast.unparse(key.target)] = ast.literal_eval(text.value)
    return found
