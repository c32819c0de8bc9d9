"""Leduc poker has the rules, the value and the exploitability of OpenSpiel's `leduc_poker`."""

from __future__ import annotations

from random import Random

import pytest

from rolecall.environments.games.environment import GameEnvironment
from rolecall.environments.games.exploitability import (
    best_response,
    collect_views,
    exploitability,
    payoffs,
)
from rolecall.environments.games.kuhn import Kuhn
from rolecall.environments.games.leduc import Leduc
from tests.environments.regret_minimisation import equilibrium

DEALS = Leduc.deals()


def played(cards: str, moves: str) -> Leduc:
    """A game after these moves, each of them legal."""
    game = Leduc(Random(0))
    game.cards = cards.split()
    for move in moves.split():
        assert move in game.legal()
        game.play(move)
    return game


@pytest.mark.parametrize(
    ("cards", "moves", "won"),
    [
        ("king queen jack", "check check check check", 1),
        ("king queen queen", "check check check check", -1),  # a pair
        ("queen queen king", "check bet call bet raise call", 0),  # equal cards
        ("king jack queen", "bet call check check", 3),
        ("king jack queen", "bet raise call bet raise call", 13),
        ("king jack jack", "bet raise call bet raise call", -13),
        ("king jack queen", "bet fold", 1),
        ("king jack queen", "check bet fold", -1),
        ("king jack queen", "bet raise fold", -3),
        ("king jack queen", "check bet raise fold", 3),
        ("king jack queen", "bet call bet fold", 3),
        ("king jack queen", "check check bet raise fold", -5),
        ("king jack queen", "bet raise call check bet raise fold", 9),
    ],
)
def test_a_line_of_play_pays_what_the_rules_say(cards, moves, won):
    game = played(cards, moves)
    assert game.to_move is None
    assert game.payoffs() == [won, -won]


def test_who_may_move_and_how():
    moves = {
        "": (0, ["check", "bet"]),
        "check": (1, ["check", "bet"]),
        "bet": (1, ["call", "fold", "raise"]),
        "bet raise": (0, ["call", "fold"]),
        "check bet raise": (1, ["call", "fold"]),
        "check check": (0, ["check", "bet"]),
        "bet raise call": (0, ["check", "bet"]),
        "bet call check bet": (0, ["call", "fold", "raise"]),
    }
    for done, expected in moves.items():
        game = played("king jack queen", done)
        assert (game.to_move, game.legal()) == expected


def test_the_card_of_the_table_is_seen_in_the_second_round_alone():
    first, second = played("king jack queen", "bet"), played("king jack queen", "bet call check")
    assert first.view(1) == "You are player 2 and hold the jack. Done: bet."
    assert second.view(1) == (
        "You are player 2 and hold the jack. On the table: queen. Done: bet, call; check."
    )
    assert all("king" not in game.view(1) for game in (first, second))


def test_a_seat_that_gives_up_loses_what_it_paid():
    game = played("king jack queen", "bet call bet")
    game.forfeit(1)
    assert game.to_move is None
    assert game.payoffs() == [3.0, -3.0]


def test_every_deal_is_listed_once_and_dealt():
    assert len(DEALS) == 6 * 5 * 4
    dealt = {tuple(Leduc(Random(seed)).cards) for seed in range(500)}
    assert dealt == {tuple(game.cards) for game in DEALS}  # 24 by their ranks
    assert len(collect_views(DEALS)) == 288
    assert len(collect_views(Kuhn.deals())) == 12
    assert all(game.rounds == [[]] for game in DEALS)  # walking them moves none


def test_uniform_play_is_as_exploitable_as_openspiel_says():
    """Half of its NashConv, 4.747222; in Kuhn poker half of 0.916667."""
    assert exploitability(DEALS, [{}, {}]) == pytest.approx(4.747222222 / 2, abs=1e-8)
    assert exploitability(Kuhn.deals(), [{}, {}]) == pytest.approx(0.916666667 / 2, abs=1e-8)


@pytest.mark.parametrize(("game", "value"), [(Kuhn, -1 / 18), (Leduc, -0.0856)])
def test_regret_minimisation_comes_to_the_known_value(game, value):
    deals = game.deals()
    strategy = equilibrium(deals, rounds=1000)
    assert exploitability(deals, [strategy, strategy]) < 5e-4
    least, most = -best_response(deals, 1, strategy), best_response(deals, 0, strategy)
    assert least - 5e-5 <= value <= most + 5e-5  # known to four digits
    assert payoffs(deals, [strategy, strategy])[0] == pytest.approx(value, abs=1e-4)


def test_the_environment_deals_it():
    environment = GameEnvironment("leduc")
    [task] = environment.tasks("test")[:1]
    assert task.prompt.startswith("Leduc poker.")
    assert len(environment.deals()) == len(DEALS)
