"""Prints what was simulated."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from rolecall_lab.simulate.splits import Outcome


def describe_placement(found: Outcome) -> str:
    """`turns`, or `apart, 1`: engines and ranks on GPUs of their own, and the staleness."""
    return "turns" if found.placement.together else f"apart, {found.placement.staleness}"


def show(rows: Sequence[Outcome], console: Console, *, faults: bool) -> None:
    """A row for each way to place each number of GPUs; the fastest of each number has a star."""
    columns = [
        "GPUs", "", "how", "engines + ranks", "step, s", "tokens/s", "a GPU", "engines", "ranks",
        "waits for", *(["with faults, s"] if faults else []),
    ]  # fmt: skip
    table = Table(box=box.SIMPLE_HEAD)
    for column in columns:
        words = column in ("", "how", "waits for")
        table.add_column(column, no_wrap=True, justify="left" if words else "right")
    for number in sorted({row.gpus for row in rows}):
        mine = [row for row in rows if row.gpus == number]
        fastest = min(mine, key=lambda row: row.real_step_s)
        for row in mine:
            placement = row.placement
            table.add_row(
                str(number) if row is mine[0] else "",
                "*" if row is fastest else "",
                describe_placement(row),
                f"{placement.engines} + {placement.ranks}",
                seconds(row.step_s),
                f"{row.tokens_per_s:,.0f}",
                f"{row.tokens_per_s / number:,.0f}",
                f"{row.engines_busy:.0%}",
                f"{row.learners_busy:.0%}",
                row.bottleneck,
                *([seconds(row.real_step_s)] if faults else []),
                end_section=row is mine[-1],
            )
    console.print(table)
    console.print(
        "* the fastest. turns: engines and learners take turns on the same GPUs; apart: on GPUs of "
        "their own, with trainer.max_staleness. engines, ranks: share of the time that they work.",
        highlight=False,
    )


def seconds(number: float) -> str:
    """Three digits; `never` where a step does not end."""
    if math.isinf(number):
        return "never"
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"
