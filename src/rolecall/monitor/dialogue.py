"""Renders conversations for the terminal with rich. Model text is never read as markup."""

from __future__ import annotations

from rich import box
from rich.cells import cell_len
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from rolecall.monitor.colours import Colour
from rolecall.monitor.reading import Talk, TalkTurn
from rolecall.runtime.visible_text import visible

NARROWEST = 28  # letters of a column in which an attempt can still be read


def talk_panel(talk: Talk, *, known: dict[str, Colour]) -> RenderableType:
    """Return a panel with one conversation, its task and its reference."""
    parts = [*task_lines(talk), *_said(talk, known=known)]
    return Panel(
        Group(*parts),
        title=Text.assemble(_score(talk), f"  {visible(talk.episode)}"),
        title_align="left",
        border_style="dim",
        box=box.ROUNDED,
    )


def task_lines(talk: Talk) -> list[RenderableType]:
    """Return the task, and its reference where it has one."""
    lines = [Text(visible(talk.question))]
    if talk.reference:
        lines.append(Text.assemble(("reference: ", "dim"), (visible(talk.reference), "bold")))
    return [*lines]


def ending(talk: Talk, *, name: str, known: dict[str, Colour], width: int) -> Text:
    """Return in one line how the last turn ended: `best score 1 solver: ... so the answer is 4`."""
    turns = [turn for turn in talk.turns if turn.chosen]
    line = Text.assemble((f"{name:5}  ", "dim"), _score(talk), "  ")
    if turns:
        turn = turns[-1]
        colour = known[turn.agent].terminal if turn.agent in known else "default"
        line.append(f"{visible(turn.agent)}: ", style=colour)
        line.append(_end(visible(" ".join(turn.spoken.split())), width - line.cell_len))
    line.truncate(width, overflow="ellipsis")
    return line


def _end(text: str, width: int) -> str:
    """Return the last cells of a text: "abcdefgh" in 6 of them -> "...fgh"."""
    if cell_len(text) <= width:
        return text
    start = max(0, len(text) - width)
    while start < len(text) and cell_len(text[start:]) > width - 3:
        start += 1
    return f"...{text[start:]}"


def side_by_side(talks: list[Talk], *, known: dict[str, Colour], width: int) -> RenderableType:
    """Return a table with a column for each attempt; as many in a row as the width takes."""
    fitting = max(1, min(len(talks), width // NARROWEST))
    rows: list[RenderableType] = []
    for first in range(0, len(talks), fitting):
        table = Table(box=box.SIMPLE_HEAVY, expand=True, padding=(0, 1))
        row = talks[first : first + fitting]
        for talk in row:
            head = Text.assemble(f"attempt {talk.attempt}  ", _score(talk))
            table.add_column(head, ratio=1, overflow="fold", vertical="top")
        for _ in range(fitting - len(row)):  # so that columns of the last row are as wide
            table.add_column(ratio=1)
        table.add_row(*(Group(*_said(talk, known=known)) for talk in row))
        rows.append(table)
    return Group(*rows)


def _said(talk: Talk, *, known: dict[str, Colour]) -> list[RenderableType]:
    lines: list[RenderableType] = [
        Group("", _head(turn, known=known), Text(visible(turn.text))) for turn in talk.turns
    ]
    if talk.error is not None:
        lines.append(Text(f"\n{visible(talk.error)}", style="red"))
    return lines or [Text("\nnobody spoke", style="dim")]


def _head(turn: TalkTurn, *, known: dict[str, Colour]) -> Text:
    colour = known[turn.agent].terminal if turn.agent in known else "default"
    head = Text.assemble((visible(turn.agent), f"bold {colour}"))
    if turn.advantage is not None:
        head.append(f"  advantage {turn.advantage:+.2f}", style=choose_style(turn.advantage))
    for name, value in turn.rewards.items():
        head.append(f"  {visible(name)} {value:+.2f}", style=choose_style(value))
    flags = {
        "unreadable": not turn.valid,
        "cut off": turn.finish == "length",
        "not played": not turn.chosen,
        "no coach's score": turn.unscored,
        "frozen": not turn.trained and not turn.unscored,
    }
    for flag, is_set in flags.items():
        if is_set:
            head.append(f"  {flag}", style="yellow")
    return head


def _score(talk: Talk) -> Text:
    if talk.error is not None:
        return Text("failed", style="bold red")
    if talk.score is None:
        return Text("no score", style="bold")
    colour = "green" if talk.score >= 1 else "red" if talk.score <= 0 else "yellow"
    return Text(f"score {talk.score:g}", style=f"bold {colour}")


def choose_style(value: float) -> str:
    """Return the style of a reward or an advantage: by its sign."""
    return "green" if value > 0.0005 else "red" if value < -0.0005 else "dim"
