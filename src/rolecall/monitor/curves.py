"""Draws the curves of a run from metrics.jsonl: on light and on dark paper, for a page and a phone.

Drawing is slow, so the panels are drawn once on each paper, in cells of one size, and the narrow
picture is cut out of the wide one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from io import BytesIO
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from PIL import Image

from rolecall.monitor.colours import colours
from rolecall.monitor.comparison import Record
from rolecall.monitor.panels import Look, panels

COLUMNS = 2  # of panels in the wide picture; the narrow one has one
# In pixels, of which DPI make an inch:
DPI = 140
WIDTH, HEIGHT = 784, 406  # of a panel's cell
LEFT, RIGHT, ABOVE, BELOW = 126, 20, 56, 80  # from a cell's edges to its axes
LINE = 40  # of the legend


class Pictures(NamedTuple):
    """PNG bytes; the narrow ones are for phones."""

    wide: bytes
    narrow: bytes
    dark_wide: bytes
    dark_narrow: bytes


def pictures(records: list[Record], agents: Iterable[str] = ()) -> Pictures:
    """Draw the curves. `agents` fixes the colours; by default those that the records name."""
    names = list(agents) or agent_names(records)
    light, dark = (choose_look(names, dark=dark) for dark in (False, True))
    return Pictures(*_wide_and_narrow(records, light), *_wide_and_narrow(records, dark))


def agent_names(records: list[Record]) -> list[str]:
    """Return the agents of the records: ["solver"] for a key `agent/solver/reward`."""
    names = {key.split("/")[1] for r in records for key in r if key.startswith("agent/")}
    return sorted(names)


def _wide_and_narrow(records: list[Record], look: Look) -> tuple[bytes, bytes]:
    """Draw one sheet with a legend, the cells, and below them the legend of the narrow picture."""
    figure = Figure(dpi=DPI, facecolor=look.paper)
    grid = _panels(figure, records, look)
    handles, labels = grid[0].get_legend_handles_labels()
    in_line = [_legend_columns(labels, columns=columns) for columns in (COLUMNS, 1)]
    top, bottom = (math.ceil(len(labels) / number) * LINE for number in in_line)
    width, height = COLUMNS * WIDTH, top + math.ceil(len(grid) / COLUMNS) * HEIGHT + bottom
    figure.set_size_inches(width / DPI, height / DPI)
    corners = [(i % COLUMNS * WIDTH, top + i // COLUMNS * HEIGHT) for i in range(len(grid))]
    for axes, (x, y) in zip(grid, corners, strict=True):
        left, below = x + LEFT, height - y - HEIGHT + BELOW
        size = (WIDTH - LEFT - RIGHT) / width, (HEIGHT - ABOVE - BELOW) / height
        axes.set_position((left / width, below / height, *size))
    for middle, upper, number in ((width / 2, height, in_line[0]), (WIDTH / 2, bottom, in_line[1])):
        figure.legend(
            handles, labels, ncols=number, labelcolor=look.ink, frameon=False, borderaxespad=0.2,
            loc="upper center", bbox_to_anchor=(middle / width, upper / height),
        )  # fmt: skip
    sheet = _drawn(figure)
    narrow = sheet.crop((0, height - bottom, WIDTH, height + HEIGHT * len(grid)))
    for number, (x, y) in enumerate(corners):
        cell = sheet.crop((x, y, x + WIDTH, y + HEIGHT))
        narrow.paste(cell, (0, bottom + number * HEIGHT))
    return _png(sheet.crop((0, 0, width, height - bottom))), _png(narrow)


def _drawn(figure: Figure) -> Image.Image:
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    image = Image.fromarray(np.asarray(canvas.buffer_rgba())[..., :3])
    # A palette makes a file a quarter as large, and a page holds four of them.
    return image.quantize(192, method=Image.Quantize.FASTOCTREE)


def _panels(figure: Figure, records: list[Record], look: Look) -> list[Axes]:
    steps = [record["step"] for record in records]
    room = max(0.6, max(steps, default=0) / 60)
    grid = []
    for title, unit, draw in panels(records):
        axes = figure.add_axes((0, 0, 1, 1), label=title)
        draw(axes, records, look)
        dress(axes, look, title=title, unit=unit)
        if steps:
            axes.set_xlim(min(steps) - room, max(steps) + room)
        grid.append(axes)
    return grid


def _png(image: Image.Image) -> bytes:
    file = BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def _legend_columns(labels: list[str], *, columns: int) -> int:
    """Return as many columns as fit: a panel is about 60 letters wide, a line's sample about 7."""
    longest = max((len(label) for label in labels), default=0) + 7
    return max(1, min(len(labels), 60 * columns // longest))


def dress(axes: Axes, look: Look, *, title: str, unit: str) -> None:
    axes.set_facecolor(look.paper)
    axes.set_title(title, loc="left", color=look.ink, fontweight="bold", fontsize=12)
    axes.set_ylabel(unit, color=look.ink)
    axes.set_xlabel("step", color=look.ink, loc="left")
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


def choose_look(agents: list[str], *, dark: bool) -> Look:
    named = {name: c.dark if dark else c.light for name, c in colours(agents).items()}
    if dark:
        shades = ("#5b83b8", "#b8a05b", "#7f6bb0", "#8a929c")
        return Look("#14181f", "#e6e9ee", "#343b46", shades, named)
    shades = ("#8fb3e3", "#e3cf8f", "#b3a3dd", "#b9c0c9")
    return Look("#ffffff", "#1b2027", "#dfe3e8", shades, named)
