"""The small recipes and some seeds in; what each learned and how long it took, as a table, out.

    python benchmarks/prove_learning.py [--recipes search code] [--seeds 0 1 2]

Writes docs/learning.md whenever all recipes have run with a seed. Status 1 if a run did not end
higher than it began, by more than the 95 % margins of both scores together.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rolecall.config.load import recipe_names

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs/learning.md"
HEAD = """# What each small recipe learns

Made by `make prove-learning` ({machine}): each recipe as it stands, one run at a time. A
score is avg@n over held-out tasks, +- is 1.96 standard errors over tasks. The models
inside the package can do the work and have good and bad habits (`rolecall.tiny.demonstrations`);
what is learned is which of them to follow. Wall time is a whole run's, its two evaluations
included. The teams of `code` and `data_science` choose among short programs of a grammar, declared
in `code.py` and `data_science.py` there; in the latter each line of a program is one token.

The models were made by `rolecall tiny build NAME --minutes M`, on one core each: math 8 minutes,
debate 8, code 10 (`--episodes 600`), mathchat 8 (`--episodes 2500`), data_science 5
(`--episodes 1000`), search 30 (`--also search_alone environment.hops=[1,2,3] --episodes 6000`);
math_small 8 (`--hidden 64 --layers 5 --vocab 330`), search_small 14 (`--also search_alone
--episodes 5000 --hidden 96 --layers 4 --vocab 400`), tools 7 (`--also planner --episodes 6000
--hidden 64 --layers 5 --vocab 420`), kuhn 1.5 (`--episodes 3000 --hidden 64 --layers 2
--vocab 360`).

| recipe | twin of | seed | before | after | gain | wall time |
|---|---|---|---|---|---|---|
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
    "kuhn": "spiral_kuhn",
}  # fmt: skip


def small() -> list[str]:
    """Recipes whose models are all inside the package."""
    return [name for name in recipe_names() if name in TWINS]


def train(recipe: str, *, seed: int, folder: Path) -> dict[str, Any]:
    """One run in a process of its own; its summary."""
    output = folder / f"{recipe}-{seed}"
    command = [sys.executable, "-m", "rolecall", "train", recipe, f"trainer.seed={seed}"]
    subprocess.run([*command, "--output", str(output)], check=True, stdout=subprocess.DEVNULL)
    summary: dict[str, Any] = json.loads((output / "summary.json").read_text())
    summary = summary.get("stages", [summary])[-1]  # of several stages the last one
    return summary | {"recipe": recipe, "name": _headline(summary)}


def _headline(summary: dict[str, Any]) -> str:
    [name] = [k for k in summary["after"] if k.startswith("avg@") and not k.endswith("_margin")]
    return name


def learned(run: dict[str, Any]) -> bool:
    before, after, name = run["before"], run["after"], run["name"]
    margins = before[f"{name}_margin"] + after[f"{name}_margin"]
    return after[name] - before[name] > margins


def row(run: dict[str, Any]) -> str:
    name, recipe = run["name"], run["recipe"]

    def told(when: str) -> str:
        return f"{run[when][name]:.3f} +- {run[when][f'{name}_margin']:.3f}"

    gain = 100 * (run["after"][name] - run["before"][name])
    return (
        f"| {recipe} | {TWINS[recipe]} | {run['seed']} | {told('before')} | {told('after')} | "
        f"{gain:+.1f} points | {run['wall_s']:.0f} s |"
    )


def document(runs: Iterable[dict[str, Any]]) -> str:
    rows = sorted(runs, key=lambda run: (run["recipe"], run["seed"]))
    machine = f"{platform.machine()}, torch {version('torch')}, Python {platform.python_version()}"
    return HEAD.format(machine=machine) + "\n".join(map(row, rows)) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipes", nargs="+", choices=small(), default=small())
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    chosen = parser.parse_args()
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in chosen.seeds:
            for recipe in chosen.recipes:
                runs.append(train(recipe, seed=seed, folder=Path(folder)))
                print(row(runs[-1]), flush=True)
            if chosen.recipes == small():
                DOCUMENT.write_text(document(runs))
    failed = [f"{run['recipe']} (seed {run['seed']})" for run in runs if not learned(run)]
    if failed:
        print(f"did not learn: {', '.join(failed)}", file=sys.stderr)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
