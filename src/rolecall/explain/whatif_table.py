"""Prints what an episode comes to when one of its turns says something else."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rolecall.explain.replays import describe_replays, show_estimate
from rolecall.explain.whatif import WhatIf
from rolecall.runtime.visible_text import visible

LETTERS = 60  # of a text


def print_whatif(result: WhatIf, console: Console) -> None:
    """Print both arms, the difference with its margin, and which turns were kept."""
    path = visible(result.turn.removeprefix(f"{result.episode}/"))
    console.print(
        Text(f"{visible(result.episode)} scored {result.score:g}; {visible(result.agent)}'s turn "
        f"{path} is changed"),
        soft_wrap=True,
    )  # fmt: skip
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("turn says")
    for name in ("score", "draws"):
        table.add_column(name, justify="right", no_wrap=True)
    change = "(sampled anew)" if result.change is None else shorten(result.change)
    was = [draw.unchanged for draw in result.draws]
    instead = [draw.changed for draw in result.draws]
    for name, value, scores in (
        (f"as it was: {shorten(result.text)}", result.unchanged, was),
        (f"instead: {change}", result.changed, instead),
    ):
        num_played = sum(score is not None for score in scores)
        table.add_row(Text(name), show_estimate(value), str(num_played))
    console.print(table)
    console.print(Text(verdict(result), style="bold"), soft_wrap=True)
    replays = describe_replays(
        2 * len(result.draws), result.num_failed, result.seconds, result.weights
    )
    console.print(
        f"{len(result.kept)} turns before it were kept, {len(result.again)} after it sampled anew; "
        f"{replays}",
        highlight=False,
        soft_wrap=True,
    )
    for note in result.notes:
        console.print(Text(visible(note), style="yellow"), soft_wrap=True)


def verdict(result: WhatIf) -> str:
    """Return in a sentence whether the change would have mattered."""
    difference = show_estimate(result.difference, sign=True)
    mean, margin = result.difference.mean, result.difference.margin
    if abs(mean) <= margin or not mean:
        return f"no difference beyond chance: {difference}"
    return f"the change {'gains' if mean > 0 else 'loses'} {difference}"


def shorten(text: str) -> str:
    """Return the beginning of a text in one line."""
    line = " ".join(visible(text).split())
    return line if len(line) <= LETTERS else f"{line[:LETTERS]}..."
