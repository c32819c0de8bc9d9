"""Draws the curves of two runs over one another."""

from __future__ import annotations

from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from rolecall.monitor.comparison import evaluations, steps
from rolecall.monitor.curves import choose_look, dress
from rolecall.storage.run_folder import RunFolder


def draw_both(a: RunFolder, b: RunFolder, path: Path) -> None:
    """Write a PNG: the score of training episodes by step, and of evaluations."""
    look = choose_look(["A", "B"], dark=False)
    figure = Figure(figsize=(11.2, 3.6), dpi=140, layout="constrained", facecolor=look.paper)
    left, right = figure.subplots(1, 2)
    for name, run in (("A", a), ("B", b)):
        records = run.read_metrics()
        played = [(r["step"], r["score"]) for r in steps(records) if "score" in r]
        scored = [
            (r["step"], next(value for key, value in r.items() if key.startswith("avg@")))
            for r in evaluations(records)
            if any(key.startswith("avg@") for key in r)
        ]
        shown = {"color": look.agents[name], "label": f"{name}: {run.path.name}"}
        if played:
            left.plot(*zip(*played, strict=True), **shown)
        if scored:
            right.plot(*zip(*scored, strict=True), marker="o", **shown)
    dress(left, look, title="Training episodes", unit="mean score")
    dress(right, look, title="Evaluations", unit="avg@n")
    handles, labels = left.get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside upper center", ncols=2, frameon=False)
    FigureCanvasAgg(figure).print_png(str(path))
