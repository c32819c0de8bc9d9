"""Draws gradient norms of GRPO and Dr. MAS by agent, and what two models save, as PNG files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, median

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from rolecall.monitor.curves import choose_look, dress
from rolecall.monitor.panels import Look
from rolecall_lab.reproduce.found import SPIKE, RunFound, spikes
from rolecall_lab.reproduce.settings import ALGORITHMS, Setting

Found = Mapping[str, Sequence[RunFound]]
LINE, OTHER_SEEDS = 1.8, 0.25  # width of the first seed's, opacity of the others'


def draw(number: int, settings: Sequence[Setting], found: Found, path: Path) -> bool:
    """Write the PNG; False where no run has come to its end."""
    there = [setting for setting in settings if found.get(setting.name)]
    if not there:
        return False
    figure = _two_models(there, found) if number == 4 else _norms(there, found)
    path.parent.mkdir(parents=True, exist_ok=True)
    FigureCanvasAgg(figure).print_png(str(path))
    return True


def _norms(settings: Sequence[Setting], found: Found) -> Figure:
    """A panel for the training score and one for each agent; the algorithms over one another."""
    agents = [*dict.fromkeys(agent for s in settings for agent in found[s.name][0].norms)]
    names = [ALGORITHMS[setting.algorithm] for setting in settings]
    look = choose_look(names, dark=False)
    panels = 1 + len(agents)
    figure = Figure(
        figsize=(4.6 * panels, 3.9), dpi=140, layout="constrained", facecolor=look.paper
    )
    first, *others = figure.subplots(1, panels)
    for setting, name in zip(settings, names, strict=True):
        runs = found[setting.name]
        for index, run in enumerate(runs):
            shown = {
                "color": look.agents[name],
                "alpha": OTHER_SEEDS if index else 1.0,
                "linewidth": LINE,
            }
            first.plot(range(1, len(run.scores) + 1), run.scores, **shown)
            for axes, agent in zip(others, agents, strict=True):
                label = None if index else _counted(name, [r.norms[agent] for r in runs])
                axes.plot(
                    range(1, len(run.norms[agent]) + 1), run.norms[agent], **shown, label=label
                )
    for axes, agent in zip(others, agents, strict=True):
        dress(axes, look, title=f"Gradient norm of the {agent}", unit="before clipping")
        axes.legend(frameon=False, labelcolor=look.ink, fontsize=9, loc="upper right")
        axes.set_ylim(0, 1.3 * axes.get_ylim()[1])  # room for the legend
    dress(first, look, title="Training", unit="mean score")
    return figure


def _counted(name: str, norms: Sequence[Sequence[float]]) -> str:
    number = sum(map(spikes, norms))
    steps = sum(map(len, norms))
    largest = max(max(of) / (median(of) or 1.0) for of in norms if of)
    return f"{name}: {number} of {steps} above {SPIKE:g} medians, most {largest:.1f}"


def _two_models(settings: Sequence[Setting], found: Found) -> Figure:
    """Bars: score, tokens by agent, seconds and dollars, of one model and of two."""
    names = [_models(setting) for setting in settings]
    runs = [found[setting.name] for setting in settings]
    look = choose_look(sorted(runs[0][0].tokens), dark=False)
    figure = Figure(figsize=(14.4, 3.9), dpi=140, layout="constrained", facecolor=look.paper)
    score, tokens, seconds, dollars = figure.subplots(1, 4)
    _bars(score, look, names, [fmean(run.average for run in of) for of in runs], "avg@16, %")
    below = [0.0] * len(runs)
    for agent in sorted(runs[0][0].tokens):
        height = [fmean(run.tokens[agent] for run in of) for of in runs]
        tokens.bar(names, height, bottom=below, label=agent, color=look.agents[agent], width=0.6)
        below = [a + b for a, b in zip(below, height, strict=True)]
    tokens.legend(frameon=False, labelcolor=look.ink, fontsize=9)
    tokens.set_ylim(0, 1.35 * max(below))
    _dressed(tokens, look, names, "Tokens an attempt")
    _bars(seconds, look, names, [fmean(run.seconds for run in of) for of in runs],
          "Seconds an attempt")  # fmt: skip
    _bars(dollars, look, names, [fmean(run.usd or 0.0 for run in of) for of in runs],
          "Dollars an evaluation")  # fmt: skip
    return figure


def _bars(axes: Axes, look: Look, names: list[str], heights: list[float], title: str) -> None:
    bars = axes.bar(names, heights, color=look.shades[0], width=0.6)
    axes.bar_label(bars, fmt="%.3g", color=look.ink, fontsize=10)
    axes.set_ylim(0, 1.15 * max(heights) or 1.0)
    _dressed(axes, look, names, title)


def _dressed(axes: Axes, look: Look, names: list[str], title: str) -> None:
    dress(axes, look, title=title, unit="")
    axes.set_xlabel("")
    axes.set_xlim(-0.6, len(names) - 0.4)
    axes.set_xticks(range(len(names)), names)


def _models(setting: Setting) -> str:
    bases = dict.fromkeys(policy["base"] for policy in setting.config["policies"].values())
    return "\nand ".join(base.rpartition("/")[2] for base in bases)
