"""Prints what was simulated."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from rolecall.simulate.splits import Outcome


def how(found: Outcome) -> str:
    """`taking turns`, or `apart, staleness 1`."""
    if found.placement.together:
        return "taking turns"
    return f"apart, staleness {found.placement.staleness}"


def show(rows: Sequence[Outcome], console: Console, *, faults: bool) -> None:
    """A row for each way to place each number of GPUs; the fastest of each number has a star."""
    table = Table(
        "GPUs", "", "how", "engines + ranks", "step, s", "tokens/s", "a GPU", "engines",
        "learners", "waits for", *(["with faults, s"] if faults else []),
    )  # fmt: skip
    for number in sorted({row.gpus for row in rows}):
        mine = [row for row in rows if row.gpus == number]
        fastest = min(mine, key=lambda row: row.real_step_s)
        for row in mine:
            place = row.placement
            table.add_row(
                f"{number:,}" if row is mine[0] else "",
                "*" if row is fastest else "",
                how(row),
                f"{place.engines} + {place.ranks}",
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


def seconds(number: float) -> str:
    """Three digits; `never` where a step does not end."""
    if math.isinf(number):
        return "never"
    return f"{number:,.0f}" if number >= 100 else f"{number:.3g}"
