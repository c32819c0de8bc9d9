"""Compares settings on a real language model in pairs of runs with one seed; a table comes out.

Each arm is `real_math` with some keys changed. Arms with the same weights share their warm start.
A run that is done is kept in the folder, and one that was stopped goes on, so the script can be
started again and again.

    python benchmarks/real_claims.py [--only drmas grpo] [--seeds 0 1 2 3 4]
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

import yaml

import rolecall
from rolecall import Episode, World
from rolecall.config.load import find

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "benchmarks/results/real-claims.json"
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


@dataclass(frozen=True, slots=True)
class Arm:
    """One setting, and the arm that it is compared with."""

    changes: dict[str, Any] = field(default_factory=dict)
    beside: str = ""
    warms_like: str = ""  # the arm whose warm start is copied
    is_shared: bool = False  # one policy for both agents


OWN = {"rewards": {f"{__file__}:own_rewards": 1.0}}
ARMS = {
    "drmas": Arm(OWN),
    "grpo": Arm(OWN | {"algorithm": {"name": "grpo", "agg": "token"}}, "drmas", "drmas"),
    "own": Arm(),
    "shared": Arm(beside="own", is_shared=True),
    "float32": Arm({"learner": {"dtype": "float32"}}, "own", "own"),
    "stale": Arm(
        {"trainer": {"max_staleness": 1}, "engine": {"separate_weights": True}}, "own", "own"
    ),
}


def make_config(arm: Arm, seed: int) -> dict[str, Any]:
    """Return the recipe of an arm with its changes."""
    config: dict[str, Any] = yaml.safe_load(find("real_math").read_text())
    if arm.is_shared:
        config["policies"] = {"both": config["policies"]["solver"]}
        for agent in config["team"].values():
            agent["policy"] = "both"
    for section, keys in [*arm.changes.items(), ("trainer", {"seed": seed})]:
        old = config.get(section)
        config[section] = old | keys if isinstance(old, dict) else keys
    return config


def train(name: str, seed: int, folder: Path) -> dict[str, Any]:
    """Run an arm, or what is left of it, and return what is reported of it."""
    arm, output = ARMS[name], folder / f"{name}-{seed}"
    if not output.exists() and arm.warms_like:
        source = folder / f"{arm.warms_like}-{seed}"
        shutil.copytree(source / "warm_start", output / "warm_start")
        shutil.copy(source / "stages.yaml", output)
    if not (output / "summary.json").is_file():
        rolecall.train(make_config(arm, seed), output=output, allow_changes=True)
    run = rolecall.load_run(output / "train")
    steps = [row for row in run.metrics().to_pylist() if row["kind"] == "step"]
    return {
        "arm": name,
        "seed": seed,
        "before": run.summary["before"]["avg@1"],
        "after": run.summary["after"]["avg@1"],
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
    other = {row["seed"]: row["after"] for row in beside}
    gaps = [row["after"] - other[row["seed"]] for row in rows if row["seed"] in other]
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--folder", type=Path, default=ROOT / "build/real-claims")
    options = parser.parse_args()
    commit = subprocess.check_output(["git", "rev-parse", "--short", "HEAD"], text=True, cwd=ROOT)
    kept = json.loads(KEPT.read_text()) if KEPT.is_file() else []
    for seed in options.seeds:
        for name in options.only:
            if not any((row["arm"], row["seed"]) == (name, seed) for row in kept):
                kept.append(train(name, seed, options.folder) | {"commit": commit.strip()})
                KEPT.write_text(json.dumps(kept, indent=1) + "\n")
            print(table(kept), flush=True)


if __name__ == "__main__":
    main()
