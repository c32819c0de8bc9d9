"""Recipes for real models are built as they stand, over a cache of the hub with tiny models."""

from __future__ import annotations

import asyncio

import pytest

from rolecall.config.load import find
from rolecall.engines.scripted import ScriptedEngine
from rolecall.rollout.episodes import play
from rolecall.setup.build import build
from rolecall.setup.plan import load_plan
from tests.hub import make_home
from tests.recipes.test_recipes import REAL, WORLDS, scored
from tests.rewards.coach.server import serving
from tests.support.evidence import leave_to_evidence

pytestmark = pytest.mark.slow

# Before its run the references of all problems are tried, in fifteen seconds.
LONG = "coder_tester"
COACHED = {"mathchat_coach": "gemini-2.5-flash", "data_science_coach": "gemini-2.5-pro"}


@pytest.fixture
def at_home(hub_bases, tmp_path, monkeypatch):
    """A folder with all models and data that the recipes name, where they look for them."""
    make_home(tmp_path, hub_bases, monkeypatch)
    return tmp_path


def built(name, *overrides):
    """All parts of a recipe."""
    return build(load_plan(find(name), [*overrides]))


@pytest.mark.parametrize(
    "name", leave_to_evidence([*REAL, *WORLDS], keep={*REAL, *WORLDS} - {LONG})
)
def test_every_part_of_a_recipe_is_built(name, at_home):
    run = built(name)
    assert set(run.context.agents) == set(run.config.team)
    assert set(run.learners) == set(run.config.trained_policies)
    assert all(run.sampler.sample(0))


@pytest.mark.parametrize("name", [*COACHED])
def test_a_recipe_with_a_coach_gets_to_its_first_scores(name, at_home):
    async def scenario():
        async with serving(lambda asked: scored(asked, 8)) as server:
            url = f"policies.coach.engine.url={server.url('google')}"
            run = built(name, url)
            for agent in run.context.agents.values():
                agent.policy.engine = ScriptedEngine(agent.policy.tokenizer, lambda request: "4.")
            [task] = run.sampler.sample(0)[:1]
            episode = await play(run.context, task, step=0)
            await run.context.environment.close()
            return run, episode, server.asked

    run, episode, asked = asyncio.run(scenario())
    assert episode.error is None
    assert len(asked) == len(episode.turns) == 3
    [asked_at] = {one.path.partition("?")[0] for one in asked}
    assert asked_at.endswith(f"/models/{COACHED[name]}:generateContent")
    assert {one.headers["x-goog-api-key"] for one in asked} == {"secret-key-1"}
    paid = 8 if name == "data_science_coach" else 0.8  # MathChat there divides scores by ten
    for turn in episode.turns:
        assert turn.rewards["coach"] == pytest.approx(paid), turn.info
    price = run.config.prices["coach"]  # of the server's answers: 600 new tokens, 400, and 50
    cost = (600 * price.prompt + 400 * price.cached + 50 * price.completion) / 1e6
    assert run.accounts["coach"].spent.usd == pytest.approx(3 * cost)
