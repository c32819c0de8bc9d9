"""Kuhn poker is refereed by its rules, and no seat sees another's card."""

from __future__ import annotations

import itertools
from random import Random

import pytest

from rolecall.agents.agent import Policy
from rolecall.config.evaluation import EvaluationConfig
from rolecall.core.errors import ConfigError
from rolecall.core.interfaces.engine import Sampling
from rolecall.core.types import Episode
from rolecall.engines.scripted import ScriptedEngine
from rolecall.environments.games.environment import GameEnvironment
from rolecall.environments.games.kuhn import CARDS, MOVES, Kuhn
from rolecall.models.loading import load_tokenizer
from rolecall.rollout.episodes import RolloutContext, play
from rolecall.rollout.evaluation import evaluate
from rolecall.runtime.turn_order import joint_steps
from rolecall.workflows.self_play import self_play
from tests.rollout.test_rollout import run
from tests.toy import agent, episode, turn
from tests.workflows.teams import play_team, shown


def dealt(first: str, second: str) -> Kuhn:
    game = Kuhn(Random(0))
    game.cards = [CARDS.index(first), CARDS.index(second)]
    return game


@pytest.mark.parametrize(
    ("moves", "higher", "lower"),
    [
        ("check check", 1, -1),
        ("bet call", 2, -2),
        ("check bet call", 2, -2),
        ("bet fold", None, 1),
        ("check bet fold", None, -1),
    ],
)
def test_each_line_of_play_pays_what_the_rules_say(moves, higher, lower):
    for cards in itertools.permutations(CARDS, 2):
        game = dealt(*cards)
        for move in moves.split():
            assert move in game.legal()
            game.play(move)
        assert game.to_move is None
        first_wins = CARDS.index(cards[0]) > CARDS.index(cards[1])
        expected = lower if higher is None else (higher if first_wins else lower)
        assert game.payoffs() == [expected, -expected]


def test_equilibrium_play_loses_the_first_player_a_eighteenth():
    """Kuhn's equilibrium with alpha = 0: the first bets nothing but calls as the second bets."""
    # seat 0: check always; facing a bet: king calls, queen calls 1/3, jack folds
    # seat 1: after a check: king bets, jack bets 1/3, queen checks; facing a bet: king, queen 1/3
    chance = {
        (0, ""): {"jack": 0.0, "queen": 0.0, "king": 0.0},
        (1, "check"): {"jack": 1 / 3, "queen": 0.0, "king": 1.0},
        (0, "check bet"): {"jack": 0.0, "queen": 1 / 3, "king": 1.0},
        (1, "bet"): {"jack": 0.0, "queen": 1 / 3, "king": 1.0},
    }

    def value(cards, done):
        game = dealt(*cards)
        for move in done:
            game.play(move)
        if game.to_move is None:
            return game.payoffs()[0]
        seat, legal = game.to_move, game.legal()
        aggressive, passive = ("bet", "check") if "bet" in legal else ("call", "fold")
        p = chance[seat, " ".join(done)][cards[seat]]
        return p * value(cards, [*done, aggressive]) + (1 - p) * value(cards, [*done, passive])

    deals = list(itertools.permutations(CARDS, 2))
    assert sum(value(cards, []) for cards in deals) / len(deals) == pytest.approx(-1 / 18)


def play_game(folder, says: dict[str, list[str]], *, penalty=0.0, **options) -> Episode:
    tokenizer = load_tokenizer(str(folder))
    left = {name: iter(texts) for name, texts in says.items()}
    team = {}
    for name in says:
        engine = ScriptedEngine(tokenizer, lambda request: next(left[request.policy]))
        policy = Policy(name, tokenizer, engine)
        sampling = Sampling(max_tokens=99)
        team[name] = agent(name, policy, sampling=sampling, invalid_penalty=penalty)
        team[name].role = "player"
    environment = GameEnvironment("kuhn")
    context = RolloutContext(team, self_play, options, environment, rewards={})
    return run(play(context, environment.tasks("test")[3], attempt=options.pop("attempt", 0)))


def test_seats_see_their_own_card_and_all_that_was_done(model_folder):
    episode = play_game(model_folder, {"ann": ["[check]", "ok [CALL]"], "ben": ["I [bet]"]})
    assert episode.error is None
    first, second, third = episode.turns
    cards = [next(c for c in CARDS if f"hold the {c}" in shown(t)) for t in (first, second)]
    assert cards[0] != cards[1]
    assert f"hold the {cards[1]}" not in shown(third)
    assert "Done: check, bet." in shown(third)
    assert "You may: [call], [fold]" in shown(third)
    won = 2.0 if CARDS.index(cards[0]) > CARDS.index(cards[1]) else -2.0
    assert episode.scores["ann"] == won
    assert episode.scores["ben"] == -won


@pytest.mark.parametrize("bad", ["raise", "[raise]", "[check] or [bet]", "check", "[call]"])
def test_an_illegal_action_is_warned_once_and_then_forfeits(model_folder, bad):
    warned = play_game(model_folder, {"ann": [bad, "[check]"], "ben": ["[check]"]})
    assert warned.error is None
    assert [turn.valid for turn in warned.turns] == [False, True, True]
    assert "not one legal action" in shown(warned.turns[1])
    lost = play_game(model_folder, {"ann": [bad, bad], "ben": []})
    assert lost.scores["ann"] == -1.0
    assert lost.scores["ben"] == 1.0
    assert len(lost.turns) == 2
    assert [turn.valid for turn in lost.turns] == [False, False]
    assert (warned.metrics["count/illegal_moves"], lost.metrics["count/illegal_moves"]) == (1, 2)
    paid = play_game(model_folder, {"ann": [bad, bad], "ben": []}, penalty=0.5)
    assert [turn.rewards["invalid"] for turn in paid.turns] == [-0.5, -0.5]


def test_the_same_deal_is_dealt_to_every_attempt_and_splits_share_none():
    environment = GameEnvironment("kuhn", train_size=50, test_size=50)
    tasks = {split: environment.tasks(split) for split in ("train", "test")}
    task = tasks["train"][7]
    assert environment.open(task, seed=1).game.cards == environment.open(task, seed=2).game.cards
    deals = [{task.info["deal"] for task in tasks[split]} for split in tasks]
    assert not deals[0] & deals[1]
    assert set(MOVES) == {"", "check", "bet", "check bet"}


def test_what_is_no_game_is_an_error(model_folder):
    with pytest.raises(ConfigError, match="no import path"):
        GameEnvironment("chess")
    episode = play_team(model_folder, self_play, {"a": []}, roles={"a": "player"})
    assert episode.error == "ValueError: self_play needs a game to play, not SumWorld"
    alone = play_game(model_folder, {"ann": []})
    assert alone.error == "ValueError: the game has 2 seats, 1 agents play"


def test_turns_say_their_seat_and_what_was_seen_and_done(model_folder):
    episode = play_game(model_folder, {"ann": ["[raise]", "[check]"], "ben": ["[check]"]})
    assert [turn.seat for turn in episode.turns] == ["0", "0", "1"]
    warned, first, second = [turn.info for turn in episode.turns]
    assert "action" not in warned
    assert first["action"] == second["action"] == "check"
    assert second["view"].endswith("Done: check.")


def test_an_evaluation_measures_how_exploitable_the_team_was(model_folder):
    environment = GameEnvironment("kuhn")
    assert environment.measures([]) == {}
    fixed = [play_game(model_folder, {"ann": ["[check]"], "ben": ["[check]"]}) for _ in range(2)]
    assert list(environment.measures(fixed)) == ["exploitability"]
    swapped = [*fixed, play_game(model_folder, {"ben": ["[check]"], "ann": ["[check]"]})]
    assert environment.measures(swapped) == {
        "exploitability": environment.measures(fixed)["exploitability"],
        "exploitability/ann": environment.measures(fixed)["exploitability"],
        "exploitability/ben": environment.measures(fixed)["exploitability"],
        "cross_play/ann/ben": 0.0,
    }


def test_what_an_evaluation_says_holds_the_measures_of_its_environment(model_folder):
    tokenizer = load_tokenizer(str(model_folder))
    engine = ScriptedEngine(tokenizer, lambda request: "[check]")
    team = {
        name: agent(name, Policy(name, tokenizer, engine), sampling=Sampling(max_tokens=99))
        for name in ("ann", "ben")
    }
    for member in team.values():
        member.role = "player"
    environment = GameEnvironment("kuhn")
    context = RolloutContext(team, self_play, {}, environment, rewards={})
    tasks = environment.tasks("test")[:30]
    found = run(evaluate(context, tasks, EvaluationConfig(samples=1, k=1)))
    # A bet wins the ante of who never has one called; none is won by checking.
    assert found["exploitability"] > 0.25
    assert list(found["by_source"]) == ["kuhn"]


def test_players_who_hear_each_other_through_the_world_act_one_after_another(model_folder):
    """A move is heard by the next player though no turn was passed to it."""
    played = play_game(model_folder, {"ann": ["[check]", "[call]"], "ben": ["[bet]"]})
    assert [[t.agent for t in step] for step in joint_steps(played)] == [
        ["ann"],
        ["ben"],
        ["ann"],
    ]


def test_players_who_act_at_once_share_a_stage_whatever_each_was_shown():
    at_once = [turn("a", path=(0, 0)), turn("b", path=(1, 0))]
    in_turn = [turn("a", path=(0,)), turn("b", path=(1,))]
    for turns in (at_once, in_turn):
        for each in turns:
            each.observation = f"the view of {each.agent}"
    assert len(joint_steps(episode(0, at_once, {}))) == 1
    assert len(joint_steps(episode(0, in_turn, {}))) == 2
    for each in in_turn:
        each.observation = "the same to all"
    assert len(joint_steps(episode(0, in_turn, {}))) == 1
