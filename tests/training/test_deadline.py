"""A step does not wait for its slowest episodes: they are cut and counted, or carried over."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from rolecall.config.schema import Config
from rolecall.core.errors import ConfigError
from rolecall.core.types import Episode, Task
from rolecall.rollout.episodes import Rollout
from rolecall.runs.api import train
from rolecall.runtime.call_tree import task_factory
from rolecall.setup.build import build
from rolecall.setup.plan import validate
from rolecall.storage.journal import Journal
from rolecall.storage.run_folder import RunFolder
from rolecall.training.collector import Collector
from tests.toy import Letters, LettersWorld, relay_config

HERE = Path(__file__).resolve()
SLOW = "train-0"  # the task whose attempts 0 and 1 wait


class Waits(LettersWorld):
    """Two attempts wait for a file."""

    def __init__(self, task: Task, released: Path) -> None:
        super().__init__(task, 0, 0.0, 0.0)
        self.released = released

    async def score(self, episode: Episode) -> dict[str, float]:
        if episode.task.id == SLOW and episode.attempt < 2 and episode.step == 1:
            while not self.released.exists():
                await asyncio.sleep(0.02)
        return {"team": 1.0 + episode.attempt}


class Slow(Letters):
    def __init__(self, size: int, released: str) -> None:
        super().__init__(size)
        self.released = Path(released)

    def open(self, task: Task, *, seed: int) -> LettersWorld:
        return Waits(task, self.released)


def config_of(folder, released: Path, **changes) -> dict:
    rollout = {"groups": 3, "group_size": 4, "deadline_s": 2.0, **changes.pop("rollout", {})}
    environment = {"name": f"{HERE}:Slow", "size": 3, "released": str(released)}
    return relay_config(folder, environment=environment, rollout=rollout, **changes)


def collector_of(folder, run_folder: RunFolder, **changes) -> Collector:
    config = Config.model_validate(
        config_of(folder, run_folder.path.with_name("released"), **changes)
    )
    if not run_folder.config.exists():
        run_folder.start(config)
    return Collector(build(validate(config)), run_folder)


CARRY = {
    "rollout": {"carry": 1},
    "trainer": {"max_staleness": 1},
    "engine": {"separate_weights": True},
}


def attempts(rollout: Rollout) -> dict[str, list[int]]:
    return {group[0].task.id: [each.attempt for each in group] for group in rollout.groups}


def run(collector: Collector, *steps: int, then=lambda: None) -> list[Rollout]:
    async def main():
        asyncio.get_running_loop().set_task_factory(task_factory)
        found = []
        for step in steps:
            found.append(await collector.collect(step))
            then()
            await asyncio.sleep(0.1)
        return found

    return asyncio.run(main())


def test_what_has_not_ended_is_cut_and_its_group_goes_on_without_it(model_folder, tmp_path):
    collector = collector_of(model_folder, RunFolder(tmp_path / "run"))
    [rollout] = run(collector, 1)
    assert attempts(rollout) == {
        "train-0": [2, 3], "train-1": [0, 1, 2, 3], "train-2": [0, 1, 2, 3],
    }  # fmt: skip
    assert (rollout.num_cut, rollout.num_carried) == (2, 0)
    assert not rollout.failures
    assert min(e.scores["team"] for e in rollout.episodes) == 1.0  # nothing counts as 0


def test_a_group_that_has_not_ended_is_whole_in_a_later_step(model_folder, tmp_path):
    collector = collector_of(model_folder, RunFolder(tmp_path / "run"), **CARRY)
    first, second = run(collector, 1, 2, then=(tmp_path / "released").touch)
    assert attempts(first).keys() == {"train-1", "train-2"}
    assert attempts(second)["train-0"] == [0, 1, 2, 3]
    assert (first.num_cut, first.num_carried) == (0, 0)
    assert (second.num_cut, second.num_carried) == (0, 1)
    assert collector.open_steps == set()
    ids = [episode.id for rollout in (first, second) for episode in rollout.episodes]
    assert len(set(ids)) == len(ids) == 3 * 4 + 3 * 4


def test_a_carried_group_and_a_new_one_of_its_task_are_told_apart(model_folder, tmp_path):
    collector = collector_of(model_folder, RunFolder(tmp_path / "run"), **CARRY)
    _, second = run(collector, 1, 2, then=(tmp_path / "released").touch)
    groups = [g for g in second.groups if g[0].task.id == SLOW]
    assert [{t.group for e in group for t in e.turns} for group in groups] == [{"2"}, {"1"}]


def test_two_steps_that_are_collected_at_once_take_what_was_carried_over_once(
    model_folder, tmp_path
):
    collector = collector_of(model_folder, RunFolder(tmp_path / "run"), **CARRY)

    async def main():
        asyncio.get_running_loop().set_task_factory(task_factory)
        first = await collector.collect(1)
        assert len(collector.carried) == 1
        return [first, *await asyncio.gather(collector.collect(2), collector.collect(3))]

    rollouts = asyncio.run(main())
    ids = [episode.id for rollout in rollouts for episode in rollout.episodes]
    assert len(set(ids)) == len(ids) == 2 * 4 + 2 + 3 * 4 + 3 * 4
    assert collector.carried == []


def test_a_group_that_does_not_end_in_time_is_cut_then(model_folder, tmp_path):
    collector = collector_of(model_folder, RunFolder(tmp_path / "run"), **CARRY)
    first, second = run(collector, 1, 2)
    assert first.num_cut == 0
    assert second.num_cut == 2
    early = [e.attempt for e in second.episodes if e.id.startswith(f"1:{SLOW}")]
    assert early == [2, 3]


def test_a_resumed_run_goes_on_with_what_was_carried_over(model_folder, tmp_path):
    folder = RunFolder(tmp_path / "run")
    collector = collector_of(model_folder, folder, **CARRY)
    run(collector, 1)
    state = json.loads(json.dumps(collector.state_dict()))
    assert state == {"open": {"1": [SLOW]}}
    assert collector.open_steps == {1}
    kept = {e.id for e in Journal(folder.journal_file(1)).read() if e.task.id == SLOW}
    assert len(kept) == 2
    again = collector_of(model_folder, folder, **CARRY)
    (tmp_path / "released").touch()

    async def main():
        asyncio.get_running_loop().set_task_factory(task_factory)
        again.load_state_dict(state)
        return await again.collect(2)

    rollout = asyncio.run(main())
    [group] = [group for group in rollout.groups if group[0].id.startswith("1:")]
    assert [episode.attempt for episode in group] == [0, 1, 2, 3]
    assert kept < {episode.id for episode in group}


def test_a_run_with_stragglers_ends_and_trains_each_episode_once(model_folder, tmp_path):
    """Two episodes wait until the first step has ended without them."""
    changes = {**CARRY, "trainer": {"max_staleness": 1, "steps": 4}, "evaluation": {"tasks": 0}}
    config = config_of(model_folder, tmp_path / "run/episodes/step-000001.parquet", **changes)
    summary = train(config, output=tmp_path / "run")
    assert summary["steps"] == 4
    rows = [
        row
        for file in sorted((tmp_path / "run/episodes").iterdir())
        for row in pq.read_table(file).to_pylist()
    ]
    turns = [row["turn"] for row in rows if row["turn"]]
    assert len(set(turns)) == len(turns)
    lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    steps = [r for r in map(json.loads, lines) if r["kind"] == "step"]
    assert sum(r["rollout/carried_groups"] + r["rollout/cut_episodes"] for r in steps) > 0
    assert steps[0]["rollout/episodes"] < 3 * 4
    assert sum(r["rollout/failures"] for r in steps) == 0
    assert list((tmp_path / "run/journal").iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rollout": {"carry": 1}}, "rollout.carry: what is carried over is sampled during"),
        ({**CARRY, "rollout": {"carry": 1, "deadline_s": None}}, "rollout.carry: without"),
        ({"trainer": {"deterministic": True}}, "trainer.deterministic: with rollout.deadline_s"),
    ],
)
def test_deadlines_that_do_not_fit_are_refused(changes, said, model_folder, tmp_path):
    with pytest.raises(ConfigError, match=said):
        validate(Config.model_validate(config_of(model_folder, tmp_path, **changes)))
