"""Compares settings on a real language model in pairs of runs: a table and curves come out.

Each arm is `real_math` with some keys changed and fewer steps. Arms that train the same weights
share their warm start, and a pair is of one seed and one processor. A run that is done is kept, and
one that was stopped goes on, so the script can be started again and again. On two cores two
processes with one thread each, and with seeds of their own, take less time than one:

    OMP_NUM_THREADS=1 python benchmarks/real_claims.py [--only drmas grpo] [--seeds 0 2 4]
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any, Literal

import numpy as np
import yaml
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

import rolecall
from rolecall import Episode, World
from rolecall.config.learners import choose_dtype
from rolecall.config.load import find
from rolecall.models.cpu.product_trials import processor
from rolecall.monitor.curves import choose_look, dress

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "benchmarks/real_claims.json"
CURVES = ROOT / "docs/real_claims.png"
STEPS = 12  # of RL
WHOLE_LR = 1e-5  # this and what follows as in the recipe real_math_whole
WHOLE_WARM_START = {"steps": 5, "lr": 5e-5}
WHOLE_LEARNER = {"dtype": "float32", "tokens_per_batch": 2048}
SPIKE = 3.0  # times the median norm of a run
# 97.5 % quantile of Student's t with n - 1 degrees of freedom, for n pairs.
QUANTILES = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36}
POWER = 1.5  # quantiles of a difference that four experiments in five would show


async def own_rewards(episode: Episode, world: World) -> dict[str, float]:
    """Pay the solver for a right answer, and the verifier 1 or -1 for its last verdict."""
    right = episode.scores["team"] == 1.0
    rewards = {"solver": float(right)}
    verdicts = [turn.tag("verify") for turn in episode.turns if turn.agent == "verifier"]
    if verdicts:
        rewards["verifier"] = 1.0 if (verdicts[-1] == "approve") == right else -1.0
    return rewards


Weights = Literal["own", "shared", "whole"]  # an adapter each, one for both, all weights


@dataclass(frozen=True, slots=True)
class Arm:
    """One setting, and the arm that it is compared with."""

    changes: dict[str, Any] = field(default_factory=dict)
    beside: str = ""
    weights: Weights = "own"


OWN = {"rewards": {f"{__file__}:own_rewards": 1.0}}
ARMS = {
    "drmas": Arm(OWN),
    "grpo": Arm(OWN | {"algorithm": {"name": "grpo", "agg": "token"}}, "drmas"),
    "own": Arm(),
    "shared": Arm(beside="own", weights="shared"),
    "float32": Arm({"learner": {"dtype": "float32"}}, "own"),
    "whole": Arm({"learner": WHOLE_LEARNER}, "float32", "whole"),
    "stale": Arm({"trainer": {"max_staleness": 1}, "engine": {"separate_weights": True}}, "own"),
}


def make_config(arm: Arm, seed: int) -> dict[str, Any]:
    """Return the recipe of an arm with its changes."""
    config: dict[str, Any] = yaml.safe_load(find("real_math").read_text())
    config["trainer"] |= {"seed": seed, "steps": STEPS}
    if arm.weights == "shared":
        config["policies"] = {"both": config["policies"]["solver"]}
        for agent in config["team"].values():
            agent["policy"] = "both"
    if arm.weights == "whole":
        for policy in config["policies"].values():
            policy |= {"adapter": None, "optimizer": {"lr": WHOLE_LR}}
        config["trainer"]["warm_start"] = WHOLE_WARM_START
    for section, keys in arm.changes.items():
        old = config.get(section)
        config[section] = old | keys if isinstance(old, dict) else keys
    return config


def copy_warm_start(name: str, seed: int, folder: Path) -> None:
    """Begin an arm with the warm start of another one that trains the same weights, if any."""
    output = folder / f"{name}-{seed}"
    for other, arm in ARMS.items():
        source = folder / f"{other}-{seed}"
        is_done = (source / "warm_start/summary.json").is_file()
        if is_done and arm.weights == ARMS[name].weights and not output.exists():
            shutil.copytree(source / "warm_start", output / "warm_start")
            shutil.copy(source / "stages.yaml", output)


def train(name: str, seed: int, folder: Path) -> dict[str, Any]:
    """Run an arm, or what is left of it, and return what is reported of it."""
    output = folder / f"{name}-{seed}"
    copy_warm_start(name, seed, folder)
    if not (output / "summary.json").is_file():
        rolecall.train(make_config(ARMS[name], seed), output=output, allow_changes=True)
    run = rolecall.load_run(output / "train")
    steps = [row for row in run.metrics().to_pylist() if row["kind"] == "step"]
    return {
        "arm": name,
        "seed": seed,
        "processor": processor(),
        "before": run.summary["before"]["avg@1"],
        "after": run.summary["after"]["avg@1"],
        "scores": [row["score"] for row in steps],
        "norms": {
            agent: [row[f"agent/{agent}/grad_norm"] for row in steps]
            for agent in ("solver", "verifier")
        },
    }


def norms_of(rows: list[dict[str, Any]], agent: str) -> str:
    """Return `0.21 / 0.15, 2`: the largest and the median norm, and the spikes of all runs."""
    norms = [[norm for norm in row["norms"][agent] if norm is not None] for row in rows]
    spikes = sum(sum(norm > SPIKE * median(run) for norm in run) for run in norms)
    return f"{fmean(map(max, norms)):.2f} / {fmean(map(median, norms)):.2f}, {spikes}"


def difference(rows: list[dict[str, Any]], beside: list[dict[str, Any]]) -> str:
    """Return the mean paired difference with its 95 % interval, and what would have shown."""
    other = {(row["seed"], row["processor"]): row["after"] for row in beside}
    pairs = [(row["after"], other.get((row["seed"], row["processor"]))) for row in rows]
    gaps = [after - before for after, before in pairs if before is not None]
    if len(gaps) not in QUANTILES:
        return f"{len(gaps)} pair" if len(gaps) == 1 else "-"
    margin = QUANTILES[len(gaps)] * stdev(gaps) / math.sqrt(len(gaps))
    return f"{fmean(gaps):+.3f} +- {margin:.3f} (would show {POWER * margin:.3f})"


def table(rows: list[dict[str, Any]]) -> str:
    """Return the rows of all arms as Markdown."""
    lines = [
        "| arm | before | after, per seed | beside | difference "
        "| solver: max / median norm, spikes | verifier |",
        "|---|---|---|---|---|---|---|",
    ]
    of = {name: [row for row in rows if row["arm"] == name] for name in ARMS}
    for name, mine in of.items():
        if mine:
            beside = ARMS[name].beside
            after = ", ".join(format(row["after"], ".3f") for row in mine)
            lines.append(
                f"| {name} | {fmean(row['before'] for row in mine):.3f} | {after} "
                f"| {beside} | {difference(mine, of[beside]) if beside else ''} "
                f"| {norms_of(mine, 'solver')} | {norms_of(mine, 'verifier')} |"
            )
    return "\n".join(lines)


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Write a PNG: scores and gradient norms of the first two arms, and scores of the others.

    A thick line is the mean over seeds, a thin one a seed.
    """
    first, others = ["drmas", "grpo"], [name for name in ARMS if name not in ("drmas", "grpo")]
    look = choose_look([*first, *others], dark=False)
    figure = Figure(figsize=(15.2, 3.7), dpi=140, layout="constrained", facecolor=look.paper)
    panels: list[tuple[str, str, list[str], Callable[[dict[str, Any]], list[float]]]] = [
        ("Own rewards", "mean score", first, lambda row: row["scores"]),
        ("Own rewards, solver", "gradient norm", first, lambda row: row["norms"]["solver"]),
        ("Own rewards, verifier", "gradient norm", first, lambda row: row["norms"]["verifier"]),
        ("One reward", "mean score", others, lambda row: row["scores"]),
    ]
    for axes, (title, unit, names, read) in zip(figure.subplots(1, 4), panels, strict=True):
        for name in names:
            curves = np.array([read(row) for row in rows if row["arm"] == name], float)
            for curve in curves:
                axes.plot(range(1, STEPS + 1), curve, color=look.agents[name], alpha=0.25)
            if len(curves):
                mean = np.nanmean(curves, axis=0)
                axes.plot(range(1, STEPS + 1), mean, color=look.agents[name], lw=2, label=name)
        dress(axes, look, title=title, unit=unit)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False, labelcolor=look.ink, fontsize=9)
    FigureCanvasAgg(figure).print_png(str(path))


def read_kept() -> list[dict[str, Any]]:
    """Return the reports of all runs that were kept."""
    return json.loads(KEPT.read_text()) if KEPT.is_file() else []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--folder", type=Path, default=ROOT / "build/real-claims")
    options = parser.parse_args()
    commit = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], text=True, cwd=ROOT)
    # Where `auto` is float32, the arm of that name would be compared with itself.
    same = {"float32"} if choose_dtype("auto") == "float32" else set()
    for seed in options.seeds:
        for name in [name for name in options.only if name not in same]:
            key = (name, seed, processor())
            kept = read_kept()
            if not any((row["arm"], row["seed"], row["processor"]) == key for row in kept):
                row = train(name, seed, options.folder) | {"commit": commit.strip()}
                kept = [*read_kept(), row]  # another process may have kept a row meanwhile
                KEPT.write_text(json.dumps(kept, indent=1) + "\n")
                # Two gigabytes a run; other arms begin with the checkpoint of the warm start.
                shutil.rmtree(options.folder / f"{name}-{seed}/train/checkpoints")
            print(table(kept), flush=True)
            draw(kept, CURVES)


if __name__ == "__main__":
    main()
