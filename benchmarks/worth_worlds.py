"""Check the verdicts of `rolecall worth` on two worlds whose answers are known.

    python benchmarks/worth_worlds.py --seeds 3 --output runs/worth

In the world `split` the reader alone sees how many coins Eva has and the solver alone what happens
to them, so that no single agent can know the answer. In the world `whole` everybody sees all of a
sum, and one agent that answers a few times is as good as a solver with a verifier.
"""

from __future__ import annotations

import argparse
import json
from itertools import product
from pathlib import Path
from typing import Any

from rolecall import Episode, Task, Team, Turn, World, workflow
from rolecall.config.schema import Config
from rolecall.core.tags import find_box
from rolecall.grading.math.answers import extract
from rolecall.runs.one_run import finish, make_room
from rolecall.runs.stop import Stop
from rolecall.runs.worth.command import worth
from rolecall.setup.plan import validate
from rolecall.storage.run_folder import RunFolder

EXPECTED = {"split": "yes", "whole": "no"}
STEPS = 12


STORY = "Eva has {} coins. Eva gets {} more. Eva gives {} away. How many coins does Eva have now?"


class Sums:
    """Sums of three numbers; where they are split, a story goes on from what they come to."""

    def __init__(self, is_split: bool = True) -> None:
        self.is_split = is_split

    def tasks(self, split: str) -> list[Task]:
        """Every fifth sum is for tests, so that train and test share no question."""
        sums = list(product(range(2, 10), repeat=3))
        chosen = sums[::5] if split == "test" else [s for i, s in enumerate(sums) if i % 5]
        return [self._task(*numbers) for numbers in chosen]

    def _task(self, a: int, b: int, c: int) -> Task:
        text = f"{a}+{b}+{c}"
        if not self.is_split:
            return Task(text, f"Compute {text}.", str(a + b + c))
        gets, gives = (a * b + c) % 8 + 2, (a + b * c) % 4 + 2
        prompt = STORY.format("some", gets, gives)
        facts = {"first": f"Compute {text}.", "gets": gets, "gives": gives}
        return Task(text, prompt, str(a + b + c + gets - gives), facts)

    def open(self, task: Task, *, seed: int) -> World:
        return SumsWorld(task)


class SumsWorld(World):
    def __init__(self, task: Task) -> None:
        self.task = task

    async def score(self, episode: Episode) -> dict[str, float]:
        """1 for the whole team if the boxed number is right, else 0."""
        return {"team": float(extract(episode.answer) == self.task.answer)}


@workflow
async def relay(team: Team, task: Task, world: World) -> Turn:
    """Let the reader find out how many coins there are, and the solver go on from its number."""
    first = await team.reader(task.info["first"])
    number = find_box(first.visible) or "some"
    return await team.solver(STORY.format(number, task.info["gets"], task.info["gives"]))


def make_config(world: str, seed: int) -> Config:
    agent = {"system": "Solve the problem. Put the answer in \\boxed{}."}
    checks = {"system": "Check it. End with <verify>approve</verify> or <verify>reject</verify>."}
    team: dict[str, dict[str, Any]] = {
        "split": {"reader": agent, "solver": agent},
        "whole": {"solver": agent, "verifier": checks},
    }[world]
    flow = f"{Path(__file__).resolve()}:relay" if world == "split" else "solver_verifier"
    return Config.model_validate(
        {
            "team": {
                name: one | {"policy": name, "sampling": {"max_tokens": 64}}
                for name, one in team.items()
            },
            "policies": {name: {"base": "tiny:math", "optimizer": {"lr": 1e-4}} for name in team},
            "workflow": flow,
            "environment": {
                "name": f"{Path(__file__).resolve()}:Sums",
                "is_split": world == "split",
            },
            "algorithm": "drmas",
            "rollout": {"groups": 16, "group_size": 8},
            "trainer": {"steps": STEPS, "seed": seed},
            "evaluation": {"tasks": 103, "samples": 8},
        }
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--output", type=Path, default=Path("runs/worth"))
    options = parser.parse_args()
    rows = []
    for world, seed in product(EXPECTED, range(options.seeds)):
        folder = RunFolder(options.output / f"{world}-{seed}")
        finish(validate(make_config(world, seed)), folder, allow_changes=False, stop=Stop())
        make_room()
        record = worth(
            folder.path, checkpoint_name="latest", answers=16, has_training=True, overrides=[],
            quiet=False,
        )  # fmt: skip
        verdict = record["verdicts"]["tokens"]
        rows.append(
            {
                "world": world,
                "seed": seed,
                "expected": EXPECTED[world],
                "verdict": verdict["is_worth"],
                "team": record["score"]["mean"],
                "single": verdict["rival"]["score"]["mean"],
                "rival": verdict["rival"]["arm"],
                "rule": verdict["rival"]["rule"],
                "margin": verdict["rival"]["gain"]["margin"],
                "seconds": record["seconds"],
            }
        )
    print(json.dumps(rows, indent=2))
    right = sum(row["verdict"] == row["expected"] for row in rows)
    print(f"{right} of {len(rows)} verdicts are right")


if __name__ == "__main__":
    main()
