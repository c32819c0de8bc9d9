"""Trains the small recipes with some seeds, and writes what each learned and how long it took.

    python benchmarks/prove_learning.py [--recipes search code] [--seeds 0 1 2]

Each run replaces the row of its recipe and seed in benchmarks/learning.json, from which
docs/learning.md is made; so some recipes can be run again without the others. Status 1 if a run did
not end higher than it began, by more than the 95 % margins of both scores together.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from rolecall.config.load import recipe_names
from rolecall_lab.bench.machine import header

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks/learning.json"
DOCUMENT = ROOT / "docs/learning.md"
HEAD = """# What each small recipe learns

Made by `make prove-learning`: each recipe as it stands, one run at a time. A score is avg@n over
held-out tasks, +- is 1.96 standard errors over tasks. The models inside the package can do the work
and have good and bad habits (`rolecall_lab.tiny.demonstrations`); what is learned is which of them
to follow. Wall time is a whole run's, its two evaluations included; where the processor has a star,
other work ran beside it, and times say little. The score of `kuhn` is chips a game, won of the
weights that the run began with. The teams of `code` and `data_science` choose among short programs
of a grammar, declared in `code.py` and `data_science.py` there; in the latter each line of a
program is one token. The agent of `multitask` writes programs of the grammar of `code`, in which
what stands between the numbers of a line is one token.

The models were made by `rolecall tiny build NAME --minutes M`, on one core each: math 8 minutes,
debate 8, code 10 (`--episodes 600`), mathchat 8 (`--episodes 2500`), data_science 5
(`--episodes 1000`), search 30 (`--also search_alone environment.hops=[1,2,3] --episodes 6000`);
math_small 8 (`--hidden 64 --layers 5 --vocab 330`), search_small 14 (`--also search_alone
--episodes 5000 --hidden 96 --layers 4 --vocab 400`), tools 7 (`--also planner --episodes 6000
--hidden 64 --layers 5 --vocab 420`), kuhn 1.5 (`--episodes 3000 --hidden 64 --layers 2
--vocab 360`), grids 10 (`plan_path --also sokoban --also sudoku --episodes 2000 --hidden 64
--layers 5 --vocab 380`), kitchen 6 (`environment.min_steps=8
environment.max_steps=12 --episodes 1200 --hidden 64 --layers 5 --vocab 420`), multitask 6
(`--episodes 1500 --hidden 64 --layers 5 --vocab 420`).

| recipe | twin of | seed | before | after | gain | wall time | processor |
|---|---|---|---|---|---|---|---|
"""
TWINS = {
    "math": "drmas_math", "math_alone": "grpo_math", "search": "drmas_search",
    "search_alone": "grpo_search", "mathchat": "mathchat_coach",
    "data_science": "data_science_coach", "debate": "debate_judge", "code": "coder_tester",
    "math_ppo": "ppo_math", "math_mappo": "mappo_math", "math_happo": "happo_math",
    "math_vdn": "vdn_math", "math_qmix": "qmix_math", "math_at_grpo": "at_grpo_math",
    "math_counterfactual": "counterfactual_math", "math_dpo": "dpo_math",
    "math_marft": "marft_math", "math_maporl": "maporl_math", "math_cory": "cory_math",
    "math_sft_rl": "sft_rl_math", "math_leader": "leader_math", "math_mixed": "agentrl_mixed",
    "search_gigpo": "gigpo_search", "tools": "torl_math", "planner": "matpo_search",
    "math_a2c": "a2c_math", "math_marft_token": "marft_token_math",
    "math_vdn_value": "vdn_value_math", "math_qmix_value": "qmix_value_math",
    "math_spin": "spin_math", "math_preferences": "preferences_math", "math_malt": "malt_math",
    "math_ab_mcts": "ab_mcts_code",
    "math_airl": "ma_airl_math", "planner_mgrpo": "mgrpo_search", "tools_ppo": "ppo_tools",
    "math_world_model": "world_model_math",
    "kuhn": "spiral_kuhn", "plan_path": "at_grpo_plan_path", "sokoban": "at_grpo_sokoban",
    "sudoku": "at_grpo_sudoku", "kitchen": "read_kitchen", "math_step": "step_math",
    "multitask": "code_math_tools", "math_experience": "experience_math", "math_ttrl": "ttrl_math",
}  # fmt: skip


def small() -> list[str]:
    """Recipes whose models are all inside the package."""
    return [name for name in recipe_names() if name in TWINS]


def train(recipe: str, *, seed: int, folder: Path) -> dict[str, Any]:
    """One run in a process of its own; its row, in which a score is [mean, margin]."""
    output = folder / f"{recipe}-{seed}"
    command = [sys.executable, "-m", "rolecall", "train", recipe, f"trainer.seed={seed}"]
    subprocess.run([*command, "--output", str(output)], check=True, stdout=subprocess.DEVNULL)
    summary: dict[str, Any] = json.loads((output / "summary.json").read_text())
    summary = summary.get("stages", [summary])[-1]  # of several stages the last one
    return {
        "recipe": recipe,
        "seed": seed,
        "before": score(summary["before"]),
        "after": score(summary["after"]),
        "wall_s": round(summary["wall_s"]),
        "processor": header()["machine"]["cpu"],
    }


def score(evaluated: dict[str, float]) -> list[float]:
    """The mean over tasks, avg@n, and its 95 % margin."""
    [name] = [k for k in evaluated if k.startswith("avg@") and not k.endswith("_margin")]
    return [evaluated[name], evaluated[f"{name}_margin"]]


def learned(run: dict[str, Any]) -> bool:
    (before, margin), (after, other) = run["before"], run["after"]
    return bool(after - before > margin + other)


def line(run: dict[str, Any]) -> str:
    """`| math | drmas_math | 0 | 0.493 +- .026 | 0.925 +- .013 | +43.2 points | 41 s | Xeon |`."""
    before, after = (
        f"{mean:.3f} +- {margin:.3f}" for mean, margin in (run["before"], run["after"])
    )
    gain = 100 * (run["after"][0] - run["before"][0])
    took = "" if run["wall_s"] is None else f"{run['wall_s']} s"
    return (
        f"| {run['recipe']} | {TWINS[run['recipe']]} | {run['seed']} | {before} | {after} | "
        f"{gain:+.1f} points | {took} | {run['processor']} |"
    )


def record(run: dict[str, Any]) -> None:
    """Put a run into the results, and write the page."""
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    rows = {(row["recipe"], row["seed"]): row for row in [*known, run]}
    rows_in_order = [rows[key] for key in sorted(rows)]
    RESULTS.write_text("[\n" + ",\n".join(map(json.dumps, rows_in_order)) + "\n]\n")
    write(rows_in_order)


def write(rows: list[dict[str, Any]]) -> None:
    DOCUMENT.write_text(HEAD + "\n".join(map(line, rows)) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipes", nargs="+", choices=small(), default=small())
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--busy", action="store_true", help="other work runs beside it: say so")
    chosen = parser.parse_args()
    failed = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in chosen.seeds:
            for recipe in chosen.recipes:
                run = train(recipe, seed=seed, folder=Path(folder))
                run["processor"] += "*" * chosen.busy
                record(run)
                print(line(run), flush=True)
                if not learned(run):
                    failed.append(f"{recipe} (seed {seed})")
    if failed:
        print(f"did not learn: {', '.join(failed)}", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
