"""Draws single panels of curves from the records of metrics.jsonl."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, PercentFormatter

from rolecall.monitor.comparison import Record, evaluations, measure, metric_names, steps

PARTS = ("rollout", "credit", "update", "publish")  # time/<part>_share
STYLES = ("-", "--", ":", "-.")
REWARDS = re.compile(r"reward/|agent/[^/]+/reward/")
SCORED = re.compile(r"score$|agent/[^/]+/reward$")
RANKED = re.compile(r"agent/[^/]+/pair_accuracy$")
VERDICTS = re.compile(r"agent/[^/]+/verdict/")
MARKS = {"test": "D--", "validation": "o:"}  # split -> points and line of its evaluations
SMOOTH_FROM = 40  # steps; fewer are drawn as they are


@dataclass(frozen=True, slots=True)
class Look:
    """The colours that a picture is drawn with."""

    paper: str
    ink: str
    faint: str
    shades: tuple[str, ...]  # one for each of PARTS
    agents: dict[str, str]  # agent -> colour


def _score(axes: Axes, records: list[Record], look: Look) -> None:
    for agent, colour in look.agents.items():
        _line(axes, records, f"agent/{agent}/reward", colour=colour, label=_plain(agent))
    _line(axes, records, "score", colour=look.ink, label="score in training")
    for split, mark in MARKS.items():
        _evaluated(axes, evaluations(records, split=split), look, split=split, mark=mark)


def _evaluated(axes: Axes, found: list[Record], look: Look, *, split: str, mark: str) -> None:
    names = [name for record in found[:1] for name in metric_names(record)[:1]]
    for name in names:
        points = [(r["step"], m) for r in found if (m := measure(r, name)) is not None]
        axes.errorbar(
            [step for step, _ in points],
            [m.mean for _, m in points],
            yerr=[m.margin or 0.0 for _, m in points],
            fmt=mark,
            color=look.ink,
            markersize=6,
            linewidth=0.9,
            elinewidth=1.6,
            capsize=4,
            zorder=5,
            label=f"{split} {name} (95 %)",
        )


def _by_agent(
    axes: Axes, records: list[Record], look: Look, metric: str, *, positive: bool = False
) -> None:
    for agent, colour in look.agents.items():
        _line(axes, records, f"agent/{agent}/{metric}", colour=colour, positive=positive)


def _loss(axes: Axes, records: list[Record], look: Look) -> None:
    _by_agent(axes, records, look, "loss")


def _pair_accuracy(axes: Axes, records: list[Record], look: Look) -> None:
    _by_agent(axes, records, look, "pair_accuracy")
    axes.set_ylim(-0.02, 1.02)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))


def _gradients(axes: Axes, records: list[Record], look: Look) -> None:
    _by_agent(axes, records, look, "grad_norm", positive=True)
    if axes.lines:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        low, high = axes.get_ylim()
        # On a short log axis powers of ten alone would leave one label or none.
        digits = "" if high > 30 * low else "235" if high > 4 * low else "23456789"
        axes.yaxis.set_minor_formatter(
            FuncFormatter(lambda value, _: f"{value:g}" if f"{value:.0e}"[0] in digits else "")
        )


def _entropy(axes: Axes, records: list[Record], look: Look) -> None:
    _by_agent(axes, records, look, "entropy")


def _length(axes: Axes, records: list[Record], look: Look) -> None:
    _by_agent(axes, records, look, "tokens")
    if axes.lines:
        axes.set_ylim(bottom=0)


def _pace(axes: Axes, records: list[Record], look: Look) -> None:
    names = {
        "pace/sampled_tokens_per_s": "while sampling",
        "pace/tokens_per_s": "of the whole step",
    }
    for (key, label), style in zip(names.items(), ("--", "-"), strict=True):
        _line(axes, records, key, colour=look.ink, label=label, style=style)
    if axes.lines:
        axes.set_ylim(bottom=0)
        _legend(axes, look)


def _time(axes: Axes, records: list[Record], look: Look) -> None:
    timed = [r for r in steps(records) if all(_number(r.get(_share(p))) for p in PARTS)]
    if not timed:
        return
    edges = [r["step"] - 0.5 for r in timed] + [timed[-1]["step"] + 0.5]
    bottom = [0.0] * len(timed)
    for phase, shade in zip(PARTS, look.shades, strict=True):
        top = [b + r[_share(phase)] for b, r in zip(bottom, timed, strict=True)]
        axes.stairs(top, edges, baseline=bottom, fill=True, color=shade, label=phase)
        bottom = top
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    axes.legend(
        loc="upper right",
        bbox_to_anchor=(1.0, -0.11),
        ncols=len(PARTS),
        frameon=False,
        fontsize=9,
        labelcolor=look.ink,
        handlelength=1.2,
    )


def _rewards(axes: Axes, records: list[Record], look: Look) -> None:
    """Draw what each function paid to whom; of the whole team in ink, of an agent in its colour."""
    for key, style in zip(_keys(records, REWARDS), cycle(STYLES), strict=False):
        function, owner = _function_and_owner(key)
        label = f"{function} of {owner}" if owner in look.agents else function
        colour = look.agents.get(owner, look.ink)
        _line(axes, records, key, colour=colour, label=_plain(label), style=style)
    _legend(axes, look)


def _verdicts(axes: Axes, records: list[Record], look: Look) -> None:
    for key, style in zip(_keys(records, VERDICTS), cycle(STYLES), strict=False):
        _, agent, _, verdict = key.split("/", 3)
        colour = look.agents.get(agent, look.ink)
        label = _plain(f"{agent}: {verdict}")
        _line(axes, records, key, colour=colour, label=label, style=style)
    axes.set_ylim(-0.02, 1.02)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    _legend(axes, look)


def _keys(records: list[Record], pattern: re.Pattern[str]) -> list[str]:
    return sorted({key for record in steps(records) for key in record if pattern.match(key)})


def _function_and_owner(key: str) -> tuple[str, str]:
    """Split a key: `reward/correct/team` -> correct, team; `agent/solver/reward/coach` -> coach,
    solver.

    A function that is named by its import path is shown by its own name.
    """
    if key.startswith("agent/"):
        _, owner, _, name = key.split("/", 3)
    else:
        name, _, owner = key.removeprefix("reward/").rpartition("/")
    return name.rpartition(":")[2], owner


Panel = tuple[str, str, Callable[[Axes, list[Record], Look], None]]
PANELS: tuple[Panel, ...] = (
    ("Score, and reward of each agent", "points an episode", _score),
    ("Gradient norm", "L2 norm before clipping (log)", _gradients),
    ("Entropy", "nats a token", _entropy),
    ("Length", "tokens an episode", _length),
    ("Pace", "tokens a second", _pace),
    ("Where the time goes", "share of a step", _time),
)


def panels(records: list[Record]) -> list[Panel]:
    """Return the panels that every run has, and those that this one has numbers for."""
    shown = list(PANELS)
    if steps(records) and not _keys(records, SCORED):  # trained on rows of a data set
        shown.insert(1, ("Loss", "mean", _loss))
    if _keys(records, RANKED):
        shown.insert(1, ("Preferences", "share of pairs ranked right", _pair_accuracy))
    if len(_keys(records, REWARDS)) > 1:
        shown.append(("Reward by function", "unweighted mean", _rewards))
    if _keys(records, VERDICTS):
        shown.append(("Verdicts", "share of an agent's turns", _verdicts))
    return shown


def _line(
    axes: Axes,
    records: list[Record],
    key: str,
    *,
    colour: str,
    label: str | None = None,
    style: str = "-",
    positive: bool = False,
) -> None:
    points = [(r["step"], r[key]) for r in steps(records) if _number(r.get(key))]
    points = [(step, value) for step, value in points if value > 0 or not positive]
    if not points:
        return
    x = [step for step, _ in points]
    y = [value for _, value in points]
    if len(points) >= SMOOTH_FROM:
        axes.plot(x, y, color=colour, linewidth=0.8, alpha=0.3)
        y = smooth(y, window=len(points) // 40)
    marker = "o" if len(points) < 8 else None
    axes.plot(x, y, style, color=colour, linewidth=2, label=label, marker=marker, markersize=4)


def smooth(values: list[float], *, window: int) -> list[float]:
    """Centred mean over at most `window` values on each side: smooth([0, 3, 0], window=1) ->
    [1.5, 1.0, 1.5].
    """
    around = [values[max(0, i - window) : i + window + 1] for i in range(len(values))]
    return [sum(near) / len(near) for near in around]


def _legend(axes: Axes, look: Look) -> None:
    axes.legend(frameon=False, fontsize=9, labelcolor=look.ink)


def _plain(name: str) -> str:
    """Matplotlib reads what stands between dollar signs as mathematics."""
    return name.replace("$", r"\$")


def _share(part: str) -> str:
    return f"time/{part}_share"


def _number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
