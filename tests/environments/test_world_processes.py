"""Each world of a foreign package has a process of its own, which may die, hang or raise."""

from __future__ import annotations

import asyncio
import time

import pytest

from rolecall.core.errors import InfrastructureError, RunEndingError
from rolecall.environments.gem import GemEnvironment
from rolecall.environments.processes.worlds import WorldError
from rolecall.rollout.episodes import RolloutContext, play
from rolecall.workflows.multi_turn import multi_turn
from tests.environments.contexts import play_in, said_by
from tests.environments.processes import write_toy_gem
from tests.rollout.test_rollout import run


@pytest.fixture(autouse=True)
def toy_gem(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("PYTHONPATH", write_toy_gem(tmp_path / "packages"))


def make(**options) -> GemEnvironment:
    return GemEnvironment(**{"make": "toy:Draw-v0"} | options)


def use(environment: GemEnvironment, work):
    async def main():
        try:
            return await work()
        finally:
            await environment.close()

    return asyncio.run(main())


def draw(environment: GemEnvironment, indices: list[int]) -> list[list[str]]:
    """Draw five numbers in each of several worlds at once, one from each world in turn."""

    async def work():
        tasks = environment.tasks("train")
        worlds = [environment.open(tasks[index], seed=0) for index in indices]
        await asyncio.gather(*(world.reset() for world in worlds))
        drawn: list[list[str]] = [[] for _ in worlds]
        for _ in range(5):
            for world, numbers in zip(worlds, drawn, strict=True):
                numbers.append((await world.step("actor", "draw")).text)
        for world in worlds:
            await world.close()
        return drawn

    return use(environment, work)


def test_worlds_at_once_draw_what_each_draws_alone():
    alone = [draw(make(), [index])[0] for index in range(3)]
    assert draw(make(), [0, 1, 2, 0]) == [*alone, alone[0]]
    assert len({tuple(numbers) for numbers in alone}) == 3


@pytest.mark.parametrize(
    ("action", "error", "line"),
    [
        ("die", InfrastructureError, "^toy:Draw-v0: its process ended during step"),
        ("hang", InfrastructureError, "^toy:Draw-v0: step took longer than step_timeout_s, 0.5 s$"),
        ("crash", WorldError, r"^toy:Draw-v0: step: KeyError: 'crashed\\nbadly'$"),
    ],
)
def test_a_world_that_dies_hangs_or_raises_is_an_error_and_others_go_on(action, error, line):
    environment = make(step_timeout_s=0.5)

    async def work():
        tasks = environment.tasks("train")
        bad, good = (environment.open(tasks[index], seed=0) for index in range(2))
        await asyncio.gather(bad.reset(), good.reset())
        with pytest.raises(error, match=line):
            await bad.step("actor", action)
        await bad.close()
        assert (await good.step("actor", "draw")).text.isdigit()
        await good.close()

    use(environment, work)


def test_an_episode_whose_world_dies_has_an_error_and_no_score(model_folder):
    environment = make()
    context = RolloutContext(
        said_by(model_folder, actor=["draw", "die"]), multi_turn, {}, environment, rewards={}
    )
    episode = run(play(context, environment.tasks("train")[0]))
    assert episode.error.startswith("InfrastructureError: toy:Draw-v0: its process ended")
    assert not episode.is_mistake
    assert episode.scores == {}


def test_a_sum_of_rewards_is_scaled_and_the_suffix_is_shown(model_folder):
    environment = make(low=-1.0, high=1.0, step_rewards=True)
    team = said_by(model_folder, actor=["draw", "last"])
    episode = play_in(environment, environment.tasks("train")[0], multi_turn, team)
    assert episode.scores["team"] == 0.75
    assert [turn.world_rewards for turn in episode.turns] == [{"step": 0.125}] * 2
    assert "Draw.\nGo on." in episode.turns[0].messages[-1].content


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"make": "toy:Draw"}, "^make: gem has no 'toy:Draw'; nearest: toy:Draw-v0$"),
        ({"options": {"least": 3}}, "^toy:Draw-v0: make: TypeError: .*'least'"),
        (
            {"options": {"most": 0}},
            "the data 'words' of nltk is missing; run `.* -m nltk.downloader",
        ),
        ({"python": "no-python"}, "^python: 'no-python' cannot be run"),
    ],
)
def test_what_cannot_be_made_ends_the_run_with_one_line(options, line):
    environment = make(**options)
    with pytest.raises(RunEndingError, match=line):
        use(environment, environment.check)


def test_a_python_without_the_package_ends_the_run_with_one_line(monkeypatch):
    monkeypatch.delenv("PYTHONPATH")
    environment = make()
    with pytest.raises(RunEndingError, match=r"^python: .* has no gem .*pip install gem-llm==0"):
        use(environment, environment.check)


def test_bounds_in_the_wrong_order_are_an_error():
    with pytest.raises(ValueError, match=r"^low is 1 and high is 0; low must be below high$"):
        make(low=1.0, high=0.0)


def test_a_world_costs_a_fork_and_no_import(model_folder):
    environment = make()

    async def work():
        (await environment.processes.open(0)).close()
        before = time.monotonic()
        for seed in range(10):
            (await environment.processes.open(seed)).close()
        return time.monotonic() - before

    assert use(environment, work) < 5.0
