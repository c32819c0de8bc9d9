"""Folders of runs that were never done: their episodes are drawn, their times are simulated."""

from __future__ import annotations

import json
import random
from math import ceil
from pathlib import Path

import yaml

from rolecall.core.types import Episode
from rolecall.monitor.metrics import WALL_SHARES
from rolecall.storage.episode_io import write_parquet
from rolecall_lab.simulate.costs import Costs, EngineCosts, LearnerCosts, PublishCosts, line
from rolecall_lab.simulate.records import MeasuredStep, read_groups
from rolecall_lab.simulate.run import Placement, Simulation
from tests.toy import episode, solo_config, turn

TRUE = Costs(
    EngineCosts(line(0.004, 0.0003), prompt_token_s=0.0001, episode_s=0.002),
    LearnerCosts(token_s=0.0002),
    publish=PublishCosts(fixed_s=0.125),
    step_s=0.05,
)
STEPS, GROUPS, ATTEMPTS = 4, 6, 4


def played(step: int, *, longest: int = 40) -> list[Episode]:
    """Two turns an episode: prompts of a group are alike, answers have lengths of their own."""
    draw, found = random.Random(step), []
    for number in range(GROUPS):
        prompt = [1, 1, 1, *(draw.randrange(9, 200) for _ in range(draw.randrange(5, 60)))]
        for attempt in range(ATTEMPTS):
            name = f"{step}:t{number}:{attempt}"
            first = [draw.randrange(9, 200) for _ in range(draw.randrange(1, longest + 1))]
            second = [draw.randrange(9, 200) for _ in range(draw.randrange(1, longest + 1))]
            turns = [
                turn("solver", task=f"t{number}", episode=name, prompt=prompt, tokens=first,
                     path=(0,), advantage=1.0),
                turn("solver", task=f"t{number}", episode=name, prompt=[*prompt, *first, 7],
                     tokens=second, path=(1,), advantage=1.0),
            ]  # fmt: skip
            made = episode(attempt, turns, {"team": 1.0}, task=f"t{number}")
            made.id = name
            found.append(made)
    return found


def simulated(steps: list, placement: Placement, costs: Costs = TRUE) -> list[MeasuredStep]:
    """What a run with these costs would have recorded of these groups."""
    run = Simulation(steps, costs, placement, concurrency=256).run()
    found = []
    for number, (groups, took) in enumerate(zip(steps, run.steps, strict=True), 1):
        walls = sorted(one.wall_s for one in run.episodes if one.step == number)
        shares = {s: walls[max(0, ceil(len(walls) * s / 100) - 1)] for s in WALL_SHARES}
        found.append(
            MeasuredStep(
                number, groups, took.step_s, took.rollout_s, took.update_s, took.publish_s, shares
            )
        )
    return found


def write_run(folder: Path, model: Path, *, longest: int = 40) -> Path:
    """A run's folder whose times are those of TRUE, on one engine and one rank."""
    (folder / "episodes").mkdir(parents=True)
    sizes = {"rollout": {"groups": GROUPS, "group_size": ATTEMPTS}}
    team = {"solver": {"policy": "a", "sampling": {"max_tokens": longest}}}
    config = solo_config(model, team=team, **sizes)
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    files = [folder / f"episodes/step-{number:06d}.parquet" for number in range(1, STEPS + 1)]
    for number, file in enumerate(files, 1):
        write_parquet(file, played(number, longest=longest), step=number)
    with (folder / "metrics.jsonl").open("w") as metrics:
        for step in simulated([read_groups(file) for file in files], Placement(1, 1)):
            metrics.write(json.dumps(record_of(step)) + "\n")
    return folder


def record_of(step: MeasuredStep) -> dict[str, object]:
    """A line of metrics.jsonl."""
    return {
        "kind": "step",
        "step": step.number,
        "time/step_s": step.step_s,
        "time/rollout_share": step.rollout_s / step.step_s,
        "time/credit_share": 0.0,
        "time/update_share": step.update_s / step.step_s,
        "time/publish_share": step.publish_s / step.step_s,
        **{f"time/episode_p{share}_s": wall for share, wall in step.walls.items()},
    }
