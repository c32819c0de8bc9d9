"""Groups that teach nothing are replaced by new tasks, also when the run is resumed."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from rolecall.config.load import load
from rolecall.core.errors import ConfigError
from rolecall.rollout.episodes import Rollout, replay
from rolecall.runtime.call_tree import task_factory
from rolecall.setup.build import build
from rolecall.setup.plan import validate
from rolecall.storage.journal import Journal
from rolecall.storage.run_folder import RunFolder
from rolecall.training import collector
from rolecall.training.collector import Collector
from tests.toy import crew_config, write

pytestmark = pytest.mark.slow

HERE = Path(__file__).resolve()


async def half_constant(episode, world):
    """Tasks with an even number earn the same in every attempt."""
    number = int(episode.task.id.removeprefix("train-"))
    variety = len(set("".join(turn.text for turn in episode.turns))) / 20
    return {"team": 0.5 if number % 2 == 0 else variety}


async def constant(episode, world):
    return {"team": 1.0}


def collector_of(folder, tmp_path, reward: str, algorithm: str = "dapo", **changes) -> Collector:
    config = crew_config(folder, algorithm=algorithm, **changes)
    config["rewards"] = {f"{HERE}:{reward}": 1.0}
    tmp_path.mkdir(exist_ok=True)
    run_folder = RunFolder(tmp_path / "run")
    loaded = load(write(tmp_path / "c.yaml", config))
    run_folder.start(loaded)
    return Collector(build(validate(loaded)), run_folder)


def collect(collector: Collector, step: int = 1) -> Rollout:
    async def main():
        asyncio.get_running_loop().set_task_factory(task_factory)
        return await collector.collect(step)

    return asyncio.run(main())


def tasks_of(rollout: Rollout) -> list[str]:
    return [group[0].task.id for group in rollout.groups]


def test_refused_groups_are_replaced_by_tasks_that_the_step_has_not_played(model_folder, tmp_path):
    rollout = collect(collector_of(model_folder, tmp_path, "half_constant"))
    used = tasks_of(rollout)
    assert len(used) == 3 == len(set(used))
    assert all(int(task.removeprefix("train-")) % 2 for task in used)
    assert rollout.num_filtered > 0
    refused = {episode.task.id for episode in rollout.unused}
    assert len(refused) == rollout.num_filtered
    assert not refused & set(used)


def test_a_step_without_signal_ends_after_ten_rounds_and_says_so(model_folder, tmp_path, caplog):
    collector = collector_of(model_folder, tmp_path, "constant")
    with caplog.at_level(logging.WARNING, logger="rolecall"):
        rollout = collect(collector)
    assert rollout.groups == []
    assert rollout.num_filtered == 30
    assert len({episode.task.id for episode in rollout.unused}) == 30
    assert "step=1 groups=0 wanted=3" in caplog.text


def test_a_finite_split_that_runs_out_of_tasks_ends_the_search(model_folder, tmp_path):
    collector = collector_of(model_folder, tmp_path, "constant", environment={"size": 7})
    assert collect(collector).num_filtered == 7


@pytest.mark.parametrize("bounds", [{}, {"above": 0.3, "below": 0.36}, {"above": -1, "below": 0.3}])
def test_a_group_filter_keeps_groups_by_their_mean_score(model_folder, tmp_path, bounds):
    """Whatever the algorithm; scores are shares of hits, as the world counts them."""
    keys = {"groups": 3, "group_size": 2, "group_filter": bounds}
    rollout = collect(collector_of(model_folder, tmp_path, "half_constant", "drmas", rollout=keys))
    above, below = bounds.get("above", 0.0), bounds.get("below", 1.0)
    means = {}
    for one in (*rollout.episodes, *rollout.unused):
        means.setdefault(one.task.id, []).append(one.scores["team"])
    kept = [above < sum(scores) / 2 < below for scores in means.values()]
    assert kept.count(True) == len(rollout.groups)
    assert kept.count(False) == rollout.num_filtered
    assert len(rollout.groups) == 3 or rollout.num_filtered > 3
    assert rollout.num_filtered or not bounds


def test_bounds_that_keep_no_group_are_refused(model_folder, tmp_path):
    rollout_keys = {"group_filter": {"above": 1, "below": 0}}
    with pytest.raises(ConfigError, match="above \\(1\\) is not less than below \\(0\\)"):
        collector_of(model_folder, tmp_path, "half_constant", "drmas", rollout=rollout_keys)


@pytest.mark.parametrize("kept", [0, 5, 12, 17, 24])
def test_a_step_resumed_in_any_round_collects_the_same(model_folder, tmp_path, kept):
    whole = collect(collector_of(model_folder, tmp_path / "a", "half_constant"))
    journal = Journal(RunFolder(tmp_path / "a/run").journal_file(1))
    lines = journal.path.read_text().splitlines(keepends=True)
    collector = collector_of(model_folder, tmp_path / "b", "half_constant")
    collector.folder.journal_file(1).write_text("".join(lines[:kept]))
    again = collect(collector)
    assert tasks_of(again) == tasks_of(whole)
    for one, other in zip(whole.episodes, again.episodes, strict=True):
        assert one.id == other.id
        for a, b in zip(one.turns, other.turns, strict=True):
            assert a.tokens.tolist() == b.tokens.tolist()
            assert a.logprobs.tolist() == b.logprobs.tolist()


class Watched(Collector):
    """Counts the ids that the engine computes while episodes are replayed."""

    async def _prepare(self, groups) -> None:
        decoders = self.run.engine._distinct
        before = [decoder.num_read for decoder in decoders]
        await super()._prepare(groups)
        self.read = [d.num_read - number for d, number in zip(decoders, before, strict=True)]


def test_replays_of_a_journalled_step_find_the_cache_that_those_of_a_played_one_find(
    model_folder, tmp_path
):
    """Rows of other batches would have other bits."""
    config = load(
        write(
            tmp_path / "c.yaml",
            crew_config(model_folder, algorithm={"name": "counterfactual", "fraction": 1.0}),
        )
    )
    folder = RunFolder(tmp_path / "run")
    folder.start(config)
    read = []
    for _ in range(2):  # the second finds the first one's journal whole
        collector = Watched(build(validate(config)), folder)

        async def collect(collector=collector) -> None:
            asyncio.get_running_loop().set_task_factory(task_factory)
            await collector.collect(1)

        asyncio.run(collect())
        read.append(collector.read)
    assert sum(read[0]) > 0
    assert read[0] == read[1]


def replayed(folder, tmp_path, monkeypatch, *, concurrency: int, **changes):
    """What one step's replays note on its turns, and how many of them ran at once."""
    monkeypatch.setattr(collector, "replay", counted := Counted())
    config = crew_config(
        folder,
        algorithm={"name": "counterfactual", "fraction": 1.0, "replays": 2},
        rollout={"groups": 2, "group_size": 2, "concurrency": concurrency},
        **changes,
    )
    tmp_path.mkdir()
    loaded = load(write(tmp_path / "c.yaml", config))
    run_folder = RunFolder(tmp_path / "run")
    run_folder.start(loaded)
    rollout = collect(Collector(build(validate(loaded)), run_folder))
    notes = {turn.id: turn.training.replayed for e in rollout.episodes for turn in e.turns}
    return notes, counted


class Counted:
    """`replay`, counted."""

    def __init__(self) -> None:
        self.now = self.most = self.whole = 0

    async def __call__(self, *given):
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            return await replay(*given)
        finally:
            self.now -= 1
            self.whole += 1


def test_all_replays_of_a_step_run_together(model_folder, tmp_path, monkeypatch):
    notes, counted = replayed(model_folder, tmp_path / "a", monkeypatch, concurrency=256)
    assert counted.most == counted.whole == 2 * len(notes) > 2 * 2 * 2


def test_no_more_replays_run_at_once_than_episodes_may_and_delays_change_nothing(
    model_folder, tmp_path, monkeypatch
):
    calm, counted = replayed(model_folder, tmp_path / "a", monkeypatch, concurrency=3)
    assert counted.most == 3
    delays = {"environment": {"max_delay_s": 0.01}}
    shaken, _ = replayed(model_folder, tmp_path / "b", monkeypatch, concurrency=3, **delays)
    assert shaken == calm
