"""Draws the curves of a run as one picture from metrics.jsonl."""

from __future__ import annotations

import math
from collections.abc import Iterable
from io import BytesIO
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator
from PIL import Image

from rolecall.monitor.colours import colours
from rolecall.monitor.comparison import Record
from rolecall.monitor.panels import Look, panels


def draw(
    records: list[Record],
    path: Path,
    *,
    agents: Iterable[str] = (),
    dark: bool = False,
    columns: int = 2,
) -> None:
    """Write a PNG. `agents` fixes the colours; by default those that the records name."""
    path.write_bytes(picture(records, agents=agents, dark=dark, columns=columns))


def picture(
    records: list[Record], *, agents: Iterable[str] = (), dark: bool = False, columns: int = 2
) -> bytes:
    """The same as PNG bytes. One column of panels suits a phone, two suit a page."""
    look = look_of(list(agents) or agents_of(records), dark=dark)
    shown = panels(records)
    rows = math.ceil(len(shown) / columns)
    size = (5.6 * columns, 2.9 * rows + 0.5)
    layout = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12)
    figure = Figure(figsize=size, dpi=140, layout=layout, facecolor=look.paper)
    canvas = FigureCanvasAgg(figure)
    grid = figure.subplots(rows, columns, squeeze=False).flatten()
    numbers = [record["step"] for record in records]
    room = max(0.6, max(numbers, default=0) / 60)
    for axes, (title, unit, panel) in zip(grid, shown, strict=False):
        panel(axes, records, look)
        dress(axes, look, title=title, unit=unit)
        if numbers:
            axes.set_xlim(min(numbers) - room, max(numbers) + room)
    for axes in grid[len(shown) :]:
        axes.set_visible(False)
    handles, labels = grid[0].get_legend_handles_labels()
    if handles:
        figure.legend(
            handles,
            labels,
            loc="outside upper center",
            ncols=_legend_columns(labels, columns=columns),
            frameon=False,
            labelcolor=look.ink,
        )
    canvas.draw()
    file = BytesIO()
    # A palette makes the file a quarter as large, and a page holds four of them.
    Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3]).quantize(192).save(file, "PNG")
    return file.getvalue()


def agents_of(records: list[Record]) -> list[str]:
    """["solver"] for a record with the key `agent/solver/reward`."""
    names = {key.split("/")[1] for r in records for key in r if key.startswith("agent/")}
    return sorted(names)


def _legend_columns(labels: list[str], *, columns: int) -> int:
    """As many as fit: a panel is about 60 letters wide, a line's sample about 7."""
    longest = max(len(label) for label in labels) + 7
    return max(1, min(len(labels), 60 * columns // longest))


def dress(axes: Axes, look: Look, *, title: str, unit: str) -> None:
    axes.set_facecolor(look.paper)
    axes.set_title(title, loc="left", color=look.ink, fontweight="bold", fontsize=12)
    axes.set_ylabel(unit, color=look.ink)
    axes.set_xlabel("step", color=look.ink)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.tick_params(which="both", colors=look.ink, labelsize=9)
    axes.grid(visible=True, which="both", color=look.faint, linewidth=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(look.faint)
    if not axes.has_data():
        axes.set(xticks=[], yticks=[])
        axes.text(0.5, 0.5, "no data yet", color=look.ink, ha="center", transform=axes.transAxes)


def look_of(agents: list[str], *, dark: bool) -> Look:
    named = {name: c.dark if dark else c.light for name, c in colours(agents).items()}
    if dark:
        shades = ("#5b83b8", "#b8a05b", "#7f6bb0", "#8a929c")
        return Look("#14181f", "#e6e9ee", "#343b46", shades, named)
    shades = ("#8fb3e3", "#e3cf8f", "#b3a3dd", "#b9c0c9")
    return Look("#ffffff", "#1b2027", "#dfe3e8", shades, named)
