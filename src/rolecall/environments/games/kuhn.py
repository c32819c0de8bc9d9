"""Kuhn poker (Kuhn 1950): three cards, two players, one bet; the first player loses 1/18 a game."""

from __future__ import annotations

from itertools import permutations
from random import Random

CARDS = ("jack", "queen", "king")  # the last is the highest
ANTE, BET = 1, 1
# What has been done -> who is to move and what that seat may do.
MOVES = {
    "": (0, ["check", "bet"]),
    "check": (1, ["check", "bet"]),
    "bet": (1, ["call", "fold"]),
    "check bet": (0, ["call", "fold"]),
}


class Kuhn:
    """Both pay one chip and see one card of three; then each checks, bets, calls or folds."""

    rules = (
        "Kuhn poker. The cards are jack, queen and king; each player holds one and paid 1 chip. "
        "The first player checks or bets 1 chip; against a bet the other calls or folds, and after "
        "a check may bet too. The higher card wins what was paid. Write one action in brackets."
    )
    seats = 2

    def __init__(self, random: Random) -> None:
        self.cards = random.sample(range(len(CARDS)), 2)
        self.done: list[str] = []
        self.gave_up: int | None = None

    @classmethod
    def deals(cls) -> list[Kuhn]:
        """Return every deal once; they are equally likely."""
        games = [cls(Random(0)) for _ in range(6)]
        for game, cards in zip(games, permutations(range(len(CARDS)), 2), strict=True):
            game.cards = list(cards)
        return games

    @property
    def to_move(self) -> int | None:
        history = " ".join(self.done)
        return MOVES[history][0] if history in MOVES and self.gave_up is None else None

    def view(self, seat: int) -> str:
        so_far = ", ".join(self.done) or "nothing yet"
        return f"You are player {seat + 1} and hold the {CARDS[self.cards[seat]]}. Done: {so_far}."

    def legal(self) -> list[str]:
        return MOVES[" ".join(self.done)][1]

    def play(self, action: str) -> None:
        self.done.append(action)

    def forfeit(self, seat: int) -> None:
        self.gave_up = seat

    def payoffs(self) -> list[float]:
        """Return the payoffs: folding or giving up costs the ante; else the lower card loses its
        stake.
        """
        loser = self.gave_up
        if loser is None and self.done[-1] == "fold":
            loser = (len(self.done) - 1) % 2
        if loser is not None:
            won = float(ANTE)
        else:
            loser = 0 if self.cards[0] < self.cards[1] else 1
            won = float(ANTE + (BET if self.done[-1] == "call" else 0))
        return [-won if seat == loser else won for seat in range(2)]
