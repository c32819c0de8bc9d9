"""A finished run is read as tables, and its team answers from Python."""

from __future__ import annotations

import asyncio

import polars
import pytest

import rolecall
from rolecall.core.errors import ConfigError
from tests.toy import relay_config

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def run(model_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "run"
    rolecall.train(relay_config(model_folder), output=folder, trainer={"steps": 2, "keep": 5})
    return folder


def test_sections_are_overridden_by_keyword(run):
    loaded = rolecall.load_run(run)
    assert (loaded.config.trainer.steps, loaded.config.trainer.keep) == (2, 5)
    assert loaded.summary["steps"] == 2


def test_metrics_and_episodes_are_tables(run):
    loaded = rolecall.load_run(run)
    metrics = loaded.metrics()
    assert metrics.column("kind").to_pylist().count("step") == 2
    episodes = loaded.episodes()
    assert set(episodes.column("step").to_pylist()) == {1, 2}
    assert set(episodes.column("split").to_pylist()) == {"train"}
    assert set(loaded.episodes(split="test").column("split").to_pylist()) == {"test"}
    frame = loaded.episodes(frame="pandas")
    assert list(frame["agent"]) == episodes.column("agent").to_pylist()
    assert isinstance(loaded.metrics(frame="polars"), polars.DataFrame)


def test_what_is_not_there_is_said(run, tmp_path):
    with pytest.raises(ConfigError, match="nowhere"):
        rolecall.load_run(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="holds no episodes of the validation split"):
        rolecall.load_run(run).episodes(split="validation")
    with pytest.raises(ConfigError, match="has no checkpoint 'step-9'"):
        rolecall.Team.load(run, step="step-9")


def test_a_trained_team_answers_with_and_without_a_loop(run):
    async def several(team):
        return await asyncio.gather(*(team.ask("abc") for _ in range(3)))

    with rolecall.Team.load(run) as team:
        alone = team.ask_now("abc")
        asked = asyncio.run(several(team))
    assert alone.answer
    assert [turn.agent for turn in alone.turns][-1] == "last"
    assert {episode.task.prompt for episode in asked} == {"abc"}
    assert len({episode.task.id for episode in [alone, *asked]}) == 4
    versions = {int(v) for turn in alone.turns for v in turn.versions}
    assert versions == {2}, "the weights of the newest checkpoint"
    assert not team._thread.is_alive()


def test_an_earlier_checkpoint_can_be_asked_and_its_environment_is_closed(run):
    closed = []

    async def close():
        closed.append(asyncio.get_running_loop())

    with rolecall.Team.load(run, step="step-1") as team:
        team.run.context.environment.close = close
        episode = team.ask_now("abc")
    assert closed == [team._loop], "in the loop in which it was used"
    assert {int(v) for turn in episode.turns for v in turn.versions} == {1}
