"""Draws how the cost of a step grows, and writes the section of docs/benchmarks.md about it.

`python docs/generate_benchmarks.py` calls it, with the results of `benchmarks/scaling.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

from rolecall_lab.bench.scaling import AXES
from rolecall_lab.bench.slopes import FIRST_STEPS, STEEP, Slope, fit_growth, summarize

MEMORY = "memory"
INK, LINE, GRID = "#1b2027", "#8a6f4d", "#dfe3e8"
BUSY = 0.5  # load, before anything is measured, of a machine that computes something else
HEAD = f"""
## Cost as work grows

`python benchmarks/scaling.py` measures whole steps of GRPO (sampling, rewards, credit, update,
publishing; nothing is written to disk) of a model of 0.8 million weights while one size of the step
grows: 4 tasks of 64 tokens x 8 episodes of one turn of 32 tokens, unless the axis says otherwise.
Each point is a process of its own, and the points take turns. The slope is that of a line
through the medians of all rounds on logarithmic scales: 1 where double the work takes double the
time, 2 where it takes four times as long. A step has fixed costs, so the slope between the last two
points is shown, too. Slopes above {STEEP} are marked, with the reason below the table.

Memory is that of the process of `rolecall train` over 1,000 steps of a model of
18 thousand weights, 2 tasks x 2 episodes of 4 tokens, without the first {FIRST_STEPS} steps.
"""


def section(results: Sequence[dict[str, Any]]) -> str:
    """Return the section of the page, with a table and a plot for each processor."""
    lines = [line for one in results for line in _processor(one)]
    return "\n".join([HEAD, *(lines or ["Not measured yet.\n"])])


def picture_name(results: dict[str, Any]) -> str:
    """Return the file of the plot in docs/scaling: `amd-epyc-family-25-model-1.svg`."""
    return f"{results['file']}.svg"


def _processor(results: dict[str, Any]) -> Iterator[str]:
    measured, machine = results["results"], results["header"]["machine"]
    some = next(iter(measured.values()))
    yield f"### Cost on {machine['cpu']}\n"
    yield f"![slopes](scaling/{picture_name(results)})\n"
    load = max(one["load"] for one in measured.values())
    text = f"Cores: {machine['cores']}; threads: {some['threads']}; commit {some['commit'][:7]}."
    if load > BUSY:
        text += f" **Provisional**: other processes used the machine (its load was {load:.1f})."
    yield text + "\n"
    yield (
        "| axis | x | seconds | slope (min .. max of a round) | last doubling "
        "| of processor time | expected |"
    )
    yield "|---|---|---|---|---|---|---|"
    reasons = []
    for name, axis in AXES.items():
        if name not in measured:
            continue
        one = measured[name]
        slope = summarize(one["positions"], one["seconds"])
        work = summarize(one["positions"], one["processor_seconds"])
        x, seconds = one["positions"], medians(one)
        yield (
            f"| {axis.title} | {axis.size}: {x[0]:,} to {x[-1]:,} | {seconds[0]:.3g} to "
            f"{seconds[-1]:.3g} | {_marked(slope.slope)} ({slope.min:.2f} .. {slope.max:.2f}) | "
            f"{_marked(slope.last)} | {work.slope:.2f} | {axis.expected} |"
        )
        if slope.is_steep:
            reasons.append(f"- **{axis.title}**: {axis.reason or 'no reason is known yet'}.")
    if MEMORY in measured:
        one = measured[MEMORY]
        yield (
            f"| Memory | steps: {FIRST_STEPS} to {one['steps'][-1]:,} | {one['mb'][-1]:,.0f} MB | "
            f"{fit_growth(one):+.1f} MB in 1,000 steps |  |  | 0 |"
        )
    yield ""
    yield from reasons
    if reasons:
        yield ""


def _marked(slope: float) -> str:
    return f"**{slope:.2f}, above {STEEP}**" if slope > STEEP else f"{slope:.2f}"


def medians(result: dict[str, Any]) -> list[float]:
    """Return the median seconds of each point over the rounds."""
    return [median(seconds) for seconds in zip(*result["seconds"], strict=True)]


def draw(results: dict[str, Any], target: Path) -> None:
    """Write an SVG with a panel for each axis, and one for memory."""
    figure = Figure(figsize=(12, 6.2), layout="constrained")
    panels = figure.subplots(2, 4).flatten()
    measured = results["results"]
    names = [name for name in (*AXES, MEMORY) if name in measured]
    for panel, name in zip(panels, names, strict=False):
        _dress(panel)
        if name == MEMORY:
            _draw_memory(panel, measured[name])
        else:
            _draw_axis(panel, name, measured[name])
    for panel in panels[len(names) :]:
        panel.axis("off")
    target.parent.mkdir(exist_ok=True)
    # The same drawing is the same file, in which the names stand as text.
    with matplotlib.rc_context({"svg.hashsalt": "rolecall", "svg.fonttype": "none"}):
        figure.savefig(target, metadata={"Date": None})


def _draw_axis(panel: Axes, name: str, result: dict[str, Any]) -> None:
    positions, seconds = result["positions"], np.array(result["seconds"])
    middle = np.median(seconds, axis=0)
    slope: Slope = summarize(positions, result["seconds"])
    errors = [middle - seconds.min(axis=0), seconds.max(axis=0) - middle]
    offset = np.mean(np.log(middle)) - slope.slope * np.mean(np.log(positions))
    panel.plot(positions, np.exp(offset) * np.array(positions, float) ** slope.slope, color=LINE)
    panel.errorbar(positions, middle, yerr=errors, fmt="o", color=INK, markersize=4, linewidth=0.9)
    panel.set(xscale="log", yscale="log", ylabel="seconds of a step")
    panel.set_xticks(positions, [f"{value:,}" for value in positions])
    panel.xaxis.set_minor_locator(NullLocator())
    panel.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    panel.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    panel.yaxis.set_minor_locator(NullLocator())
    panel.tick_params(which="both", labelsize=7)
    panel.set_xlabel(AXES[name].size, fontsize=8)
    text = f"{AXES[name].title}: slope {slope.slope:.2f}"
    panel.set_title(text, loc="left", fontsize=10, fontweight="bold", color=INK)
    panel.text(0.04, 0.92, f"last doubling {slope.last:.2f}", fontsize=8, transform=panel.transAxes)


def _draw_memory(panel: Axes, result: dict[str, Any]) -> None:
    panel.plot(result["steps"], result["mb"], "o-", color=INK, markersize=3, linewidth=0.9)
    panel.axvline(FIRST_STEPS, color=LINE, linewidth=0.9)
    panel.set_ylim(0, 1.25 * max(result["mb"]))
    panel.set_ylabel("MB of resident memory")
    panel.set_xlabel("step", fontsize=8)
    panel.tick_params(labelsize=7)
    text = f"Memory: {fit_growth(result):+.1f} MB in 1,000 steps"
    panel.set_title(text, loc="left", fontsize=10, fontweight="bold", color=INK)


def _dress(panel: Axes) -> None:
    panel.grid(visible=True, which="major", color=GRID, linewidth=0.7)
    panel.set_axisbelow(True)
    for side in ("top", "right"):
        panel.spines[side].set_visible(False)
