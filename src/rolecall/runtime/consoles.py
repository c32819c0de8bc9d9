"""Makes rich's consoles for lines that hold paths, errors and what servers say.

rich reads brackets in them as markup: an error of gloo's, `Connection closed by peer
[127.0.0.1]:2345`, ends in one of rich's own, and others lose words. Here a text is shown as it is,
without keys and control characters; `rich.text.Text` is for what has a style.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.text import Text

from rolecall.runtime.secret_texts import scrub
from rolecall.runtime.visible_text import visible

# What is called before a console prints: a line that follows progress goes from the terminal.
before_print: list[Callable[[], None]] = []


class PlainConsole(Console):
    """A console whose texts are no markup."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, **options)

    def print(self, *objects: Any, **options: Any) -> None:
        """Print where no line of progress stands."""
        for call in before_print:
            call()
        super().print(*objects, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Render a text, also of the cells of tables, without secrets and unseen signs."""
        return super().render_str(visible(scrub(text)), **options)
