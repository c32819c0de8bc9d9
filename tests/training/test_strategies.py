"""Strategies are read from a policy as it plays, exactly or from samples."""

from __future__ import annotations

import asyncio
import json
from random import Random

import numpy as np
import pytest

from rolecall.agents.agent import Policy
from rolecall.config.evaluation import EvaluationConfig
from rolecall.config.load import find, load
from rolecall.core.interfaces.engine import Sampling
from rolecall.engines.scripted import ScriptedEngine
from rolecall.environments.games.environment import GameEnvironment
from rolecall.environments.games.exploitability import collect_views, exploitability
from rolecall.environments.games.kuhn import CARDS, Kuhn
from rolecall.models.loading import load_tokenizer
from rolecall.rollout.episodes import RolloutContext
from rolecall.runtime.call_tree import task_factory
from rolecall.setup.build import build
from rolecall.setup.plan import validate
from rolecall.training import train_step
from rolecall.training.strategies import (
    NUM_SAMPLES,
    Reading,
    list_deals,
    measure_exploitability,
    read_strategy,
)
from rolecall.workflows.self_play import self_play
from tests.rollout.test_rollout import run
from tests.toy import agent, command

DEALS = Kuhn.deals()
VIEWS = collect_views(DEALS)
BOLD = {"jack": 0.3, "queen": 0.5, "king": 0.9}


def strategy_by_card() -> dict[str, dict[str, float]]:
    """How often each card bets or calls, wherever it is held."""
    strategy = {}
    for view, game in VIEWS.items():
        bold = BOLD[next(card for card in CARDS if f"hold the {card}" in view)]
        timid, _ = sorted(game.legal(), key=lambda action: action in ("bet", "call"))
        strategy[view] = {a: 1 - bold if a == timid else bold for a in game.legal()}
    return strategy


class KuhnEngine(ScriptedEngine):
    """Plays a strategy; `bare` of its answers are the action alone, the others say more."""

    can = frozenset({"score_at_temperature"})

    def __init__(self, tokenizer, strategy, *, bare=1.0) -> None:
        super().__init__(tokenizer, self.answer)
        self.strategy, self.bare, self.random = strategy, bare, Random(0)

    def chances(self, prompt) -> dict[str, float]:
        shown = self.tokenizer.decode(prompt)
        return next(chances for view, chances in self.strategy.items() if view in shown)

    def answer(self, request) -> str:
        chances = self.chances(request.prompt)
        [action] = self.random.choices([*chances], weights=[*chances.values()])
        return f"[{action}]" if self.random.random() < self.bare else f"I say [{action}]"

    async def score(self, policy, prompt, tokens, *, temperature):
        assert tokens[-1] == self.tokenizer.eos_token_id
        action = self.tokenizer.decode(tokens[:-1]).strip("[]")
        chance = self.chances(prompt)[action] * self.bare
        return np.full(len(tokens), np.log(chance) / len(tokens))


def team(folder, *strategies, bare=1.0, swap=True, **options) -> RolloutContext:
    tokenizer = load_tokenizer(str(folder))
    members = {}
    for name, strategy in zip(("ann", "ben"), strategies, strict=True):
        policy = Policy(name, tokenizer, KuhnEngine(tokenizer, strategy, bare=bare))
        members[name] = agent(name, policy, **{"sampling": Sampling(max_tokens=99)} | options)
        members[name].role = "player"
    return RolloutContext(
        members, self_play, {"swap_seats": swap}, GameEnvironment("kuhn"), rewards={}
    )


def test_probabilities_are_those_of_the_policy(model_folder):
    strategy = strategy_by_card()
    context = team(model_folder, strategy, {}, bare=0.95)
    reading = run(read_strategy(context, "ann", VIEWS))
    assert reading.samples == 0
    assert reading.bare == pytest.approx(0.95)
    assert reading.strategy.keys() == strategy.keys()
    for view, chances in strategy.items():
        assert reading.strategy[view] == pytest.approx(chances)


@pytest.mark.parametrize(
    ("bare", "sampling"), [(0.5, Sampling(max_tokens=99)), (1.0, Sampling(max_tokens=99, top_k=9))]
)
def test_moves_are_sampled_where_bare_actions_say_too_little(model_folder, bare, sampling):
    strategy = strategy_by_card()
    context = team(model_folder, strategy, {}, bare=bare, sampling=sampling)
    reading = run(read_strategy(context, "ann", VIEWS))
    assert reading.samples == NUM_SAMPLES
    assert (reading.bare is None) == sampling.is_filtered
    errors = [
        reading.strategy[view].get(action, 0.0) - chance
        for view, chances in strategy.items()
        for action, chance in chances.items()
    ]
    assert 0 < max(map(abs, errors)) < 4 * np.sqrt(0.25 / NUM_SAMPLES)


def test_each_agent_that_plays_both_seats_is_measured_and_else_the_team(model_folder):
    strategies = [strategy_by_card(), {view: {"bet": 0.5, "check": 0.5, "call": 0.5, "fold": 0.5}
                                       for view in VIEWS}]  # fmt: skip
    options = EvaluationConfig()
    both = run(measure_exploitability(team(model_folder, *strategies), options))
    assert [one.agent for one in both] == ["ann", "ben"]
    for one, strategy in zip(both, strategies, strict=True):
        assert one.exploitability == pytest.approx(exploitability(DEALS, [strategy] * 2))
    [whole] = run(measure_exploitability(team(model_folder, *strategies, swap=False), options))
    assert whole.agent == "team"
    assert whole.exploitability == pytest.approx(exploitability(DEALS, strategies))


def test_a_game_that_lists_no_deals_has_no_exploitability(model_folder):
    context = team(model_folder, {}, {})
    assert len(list_deals(context)) == len(DEALS)
    context.environment = GameEnvironment(f"{__name__}:Undealt")
    assert list_deals(context) == []


class Undealt(Kuhn):
    seats = 3


@pytest.mark.slow
def test_a_language_model_is_read_as_it_plays(monkeypatch):
    """The model of `kuhn` is read from log-probs and from samples, and both agree."""
    kuhn = build(validate(load(find("kuhn"))))

    async def read() -> list[Reading]:
        asyncio.get_running_loop().set_task_factory(task_factory)
        await train_step.publish(kuhn, list(kuhn.learners))
        readings = []
        for bare in (0.0, 1.0):
            monkeypatch.setattr("rolecall.training.strategies.BARE", bare)
            readings.append(await read_strategy(kuhn.context, "player", VIEWS))
        await kuhn.close()
        return readings

    exact, sampled = asyncio.run(read())
    assert (exact.samples, sampled.samples) == (0, NUM_SAMPLES)
    assert 0.5 < exact.bare == sampled.bare < 1.0
    errors = [
        sampled.strategy[view].get(action, 0.0) - chance
        for view, chances in exact.strategy.items()
        for action, chance in chances.items()
    ]
    assert 0 < max(map(abs, errors)) < 4 * np.sqrt(0.25 / NUM_SAMPLES)


@pytest.mark.evidence
def test_crossplay_shows_the_exploitability_of_each_run(tmp_path, capsys):
    small = ["trainer.steps=2", "evaluation.tasks=0", "rollout.groups=8"]
    for name in ("one", "two"):
        assert command("train", "kuhn", *small, "--output", tmp_path / name) == 0
    capsys.readouterr()
    asked = ["evaluation.tasks=4", "evaluation.samples=2", "evaluation.k=1"]
    assert command("crossplay", tmp_path / "one", tmp_path / "two", *asked) == 0
    shown = capsys.readouterr().out
    record = json.loads((tmp_path / "one/evaluated/crossplay.json").read_text())
    measured = record["exploitability"]
    assert measured["uniform"] == pytest.approx(11 / 24)
    for letter in "AB":
        [player] = measured["runs"][letter]
        assert player["agent"] == "player"
        assert 0.0 < player["exploitability"] < 2.0
        assert f"{player['exploitability']:.4f}" in shown
    assert "0.4583" in shown
