"""A run on several environments: shares, families in metrics and evaluations, credit by family."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from rolecall.config.load import load
from rolecall.core.types import Episode
from rolecall.setup.build import build
from rolecall.setup.plan import validate
from rolecall.storage.run_folder import RunFolder
from rolecall.training.trainer import Trainer
from tests import toy
from tests.toy import crew_config, relay_config, write
from tests.training.test_trainer import Silent

pytestmark = pytest.mark.slow

HERE = Path(__file__).resolve()


class LoudLetters(toy.Letters):
    """The same, paid ten times as much."""

    def open(self, task, *, seed):
        return Loud(task, seed, 0.0, 0.0)


class Loud(toy.LettersWorld):
    async def score(self, episode):
        found = await super().score(episode)
        return {"team": 10 * found["team"]}


@pytest.fixture(scope="module")
def folder(model_folder, tmp_path_factory) -> RunFolder:
    path = tmp_path_factory.mktemp("mixed")
    letters = f"{Path(toy.__file__).resolve()}:Letters"
    config = relay_config(
        model_folder,
        algorithm={"name": "rloo", "per_family": True},
        rollout={"groups": 4, "curriculum": {"by": "family"}},
        trainer={"steps": 2},
    )
    config["environment"] = {
        "name": "mixed",
        "of": {"quiet": {"name": letters, "size": 6}, "loud": f"{HERE}:LoudLetters"},
    }
    loaded = load(write(path / "c.yaml", config), ["environment.of.loud.weight=1"])
    found = RunFolder(path / "run")
    found.start(loaded)
    asyncio.run(Trainer(build(validate(loaded)), found, display=Silent()).train())
    return found


def test_metrics_and_evaluations_tell_families_apart(folder):
    steps = [r for r in folder.read_metrics() if r["kind"] == "step"]
    for record in steps:
        numbers = {n: record[f"family/{n}/episodes"] for n in ("quiet", "loud")}
        assert sum(numbers.values()) == record["rollout/episodes"] == 16
        total = sum(record[f"family/{name}/score"] * n for name, n in numbers.items())
        assert total / 16 == pytest.approx(record["score"])
        assert record["family/loud/score"] > record["family/quiet/score"]
    evaluation = next(r for r in folder.read_metrics() if r["kind"] == "evaluation")
    assert {n: part["num_tasks"] for n, part in evaluation["by_family"].items()} == {
        "loud": 2,
        "quiet": 2,
    }
    assert list(evaluation["by_source"]) == ["letters"]


def test_advantages_of_each_family_have_mean_0_and_spread_1_for_each_policy(folder):
    rows = pq.read_table(folder.episode_file(1)).to_pylist()
    compared = 0
    for policy in ("a", "b"):
        for family in ("quiet", "loud"):
            found = [
                value
                for row in rows
                if row["policy"] == policy and row["task"].startswith(f"{family}/")
                for value in row["advantages"]
            ]
            if any(found):
                compared += 1
                assert np.mean(found) == pytest.approx(0, abs=1e-5)
                assert np.std(found, ddof=1) == pytest.approx(1, abs=1e-3)
    assert compared == 4


def test_pass_rates_are_in_the_checkpoint(folder):
    state = json.loads((folder.checkpoints / "step-2/state.json").read_text())
    assert set(state["states"][-1]) == {"2"}
    assert set(state["states"][-1]["2"]) == {"quiet", "loud"}


def test_draws_ahead_of_updates_follow_from_the_episodes_before_their_bound(model_folder, tmp_path):
    """Staleness 1: the tasks of step n are what the recorded scores up to step n - 2 draw."""
    config = crew_config(
        model_folder,
        rollout={"curriculum": {"prior": 0.0, "floor": 0.001}},
        trainer={"steps": 4, "max_staleness": 1},
        engine={"separate_weights": True},
        evaluation={"tasks": 0},
    )
    loaded = load(write(tmp_path / "c.yaml", config))
    folder = RunFolder(tmp_path / "run")
    folder.start(loaded)
    asyncio.run(Trainer(build(validate(loaded)), folder, display=Silent()).train())
    again = build(validate(loaded)).sampler
    drawn = []
    for step in (1, 2, 3, 4):
        tasks = {task.id: task for task in again.sample(step)}
        rows = pq.read_table(folder.episode_file(step)).to_pylist()
        assert {row["task"] for row in rows} == set(tasks)
        scores = {row["episode"]: (tasks[row["task"]], row["score"]) for row in rows}
        again.update(
            step, [Episode(n, t, 0, 0, scores={"team": s}) for n, (t, s) in scores.items()]
        )
        drawn.append(set(tasks))
    assert drawn[2] & drawn[0]  # of what step 1 played, some come again as soon as they may
    assert not drawn[1] & drawn[0]
