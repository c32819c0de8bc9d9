"""A line that holds an error, a path or a server's words is shown as it is."""

from __future__ import annotations

import ast
import io

import pytest
from rich.console import Console
from rich.errors import MarkupError
from rich.table import Table

from rolecall.runtime.consoles import PlainConsole
from tests.sources import source_files

GLOO = "Connection closed by peer [127.0.0.1]:23456, see [/usr/lib/gloo.cc:12]: [bold]x[/bold]"


def shown(text: object) -> str:
    out = io.StringIO()
    PlainConsole(file=out, width=200, force_terminal=True, color_system=None).print(text)
    return out.getvalue().strip()


def test_brackets_of_an_error_are_shown_and_do_not_end_the_run():
    line = f"learner rank 1 of 2 failed: {GLOO}. The run is started again"
    with pytest.raises(MarkupError):
        Console(file=io.StringIO()).print(line)
    assert shown(line) == line
    assert shown("data: :warning: of :smile:") == "data: :warning: of :smile:"


def test_the_cells_of_a_table_are_texts_too():
    table = Table()
    table.add_column("[a]")
    table.add_row(f"{GLOO} \x1b[31m")
    assert GLOO in shown(table)
    assert "[a]" in shown(table)
    assert "\u241b[31m" in shown(table)


def test_escape_codes_reach_no_terminal_by_a_console():
    assert shown("\x1b]0;owned\x07 \x1b[2J") == "\u241b]0;owned\u2407 \u241b[2J"


def test_all_consoles_are_plain_ones():
    made = [
        name
        for name, file in source_files()
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Console")
        if not ast.unparse(node.func).endswith("PlainConsole")
    ]
    assert made == []
