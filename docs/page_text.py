"""Text of docstrings and comments in, Markdown that shows all of it out.

Outside of code spans Markdown takes `<answer>` for markup, and a page would leave it out.
"""

from __future__ import annotations

import re

CODE_SPAN = re.compile(r"(`+[^`]*`+)")


def shown(text: str) -> str:
    """`<a>` and <b> -> `<a>` and &lt;b>."""
    parts = CODE_SPAN.split(text)
    return "".join(part if part.startswith("`") else part.replace("<", "&lt;") for part in parts)
