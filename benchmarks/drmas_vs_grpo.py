"""Two algorithms, two ways to share weights, three seeds in; a table for docs/results.md out.

Agents' rewards lie on different scales (a bonus of 10 for the verifier's own verdict), which is
where comparing an agent with itself only should matter.

    python benchmarks/drmas_vs_grpo.py [--steps 12] [--seeds 0 1 2]
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from statistics import fmean

import yaml

from rolecall.config.load import find
from rolecall.runs import train as command

ROOT = Path(__file__).resolve().parents[1]
BONUS = f"{ROOT / 'examples' / 'role_bonus.py'}:role_bonus"


def config(setting: str, algorithm: str, *, seed: int, steps: int) -> dict:
    """The maths recipe with a bonus on another scale, and a smaller budget."""
    made = yaml.safe_load(find("math").read_text())
    made["rewards"] = {"correct": 1.0, BONUS: 1.0}
    # The same loss for both: only the comparison differs.
    made["algorithm"] = {"name": algorithm, "agg": "token"}
    made["rollout"]["groups"] = 16
    made["trainer"] = {"steps": steps, "seed": seed, "save_every": 1000}
    made["evaluation"] = {"tasks": 40, "samples": 4, "k": 4}
    if setting == "shared":
        made["policies"] = {"both": made["policies"]["solver"]}
        for agent in made["team"].values():
            agent["policy"] = "both"
    return made


def run(setting: str, algorithm: str, *, seed: int, steps: int) -> dict:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"{setting}-{algorithm}-{seed}.yaml"
        file.write_text(yaml.safe_dump(config(setting, algorithm, seed=seed, steps=steps)))
        return command.train(str(file), [], output=Path(folder) / "run", resume=False)


def table(found: dict[tuple[str, str], list[dict]]) -> str:
    lines = [
        "| weights | algorithm | avg@4 before | avg@4 after, per seed | mean after | "
        "solver max / median norm | verifier max / median norm |",
        "|---|---|---|---|---|---|---|",
    ]
    for (setting, algorithm), summaries in found.items():
        after = [s["after"]["avg@4"] for s in summaries]
        norms = []
        for agent in ("solver", "verifier"):
            largest = fmean(s["agents"][agent]["grad_norm_max"] for s in summaries)
            middle = fmean(s["agents"][agent]["grad_norm_median"] for s in summaries)
            norms.append(f"{largest:.2f} / {middle:.2f}")
        lines.append(
            f"| {setting} | {algorithm} | {fmean(s['before']['avg@4'] for s in summaries):.3f} | "
            f"{', '.join(f'{a:.3f}' for a in after)} | {fmean(after):.3f} | {' | '.join(norms)} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found: dict[tuple[str, str], list[dict]] = {}
    for setting in ("own", "shared"):
        for algorithm in ("drmas", "grpo"):
            found[setting, algorithm] = [
                run(setting, algorithm, seed=seed, steps=options.steps) for seed in options.seeds
            ]
            print(table(found), flush=True)
    if options.json:
        rows = [{"setting": s, "algorithm": a, "runs": r} for (s, a), r in found.items()]
        options.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
