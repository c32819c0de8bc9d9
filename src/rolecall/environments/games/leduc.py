"""Leduc poker (Southey et al. 2005): six cards, two rounds; the first player loses 0.0856 a game.

Rules and payoffs are those of `leduc_poker` in OpenSpiel.
"""

from __future__ import annotations

import copy
from itertools import permutations
from random import Random

RANKS = ("jack", "queen", "king")  # the last is the highest
CARDS = (*RANKS, *RANKS)  # one of each rank in both suits
ANTE = 1
BETS = (2, 4)  # chips of a bet or a raise in each round
MOST_BETS = 2  # of a round: a bet and a raise


class Leduc:
    """Both pay one chip and see one card of six; after a round of bets a card of the table is
    shown, and a second round follows.
    """

    rules = (
        "Leduc poker. The cards are two jacks, two queens and two kings; each player holds one and "
        "paid 1 chip. There are two rounds, and the first player begins both. Check, or bet; "
        "against a bet call, fold, or raise once. A bet or raise is 2 chips in the first round and "
        "4 in the second. After the first round a card of the table is shown. Who holds its pair "
        "wins what was paid; without a pair the higher card wins, and equal cards share. Write one "
        "action in brackets."
    )
    seats = 2

    def __init__(self, random: Random) -> None:
        self.cards = [CARDS[index] for index in random.sample(range(len(CARDS)), 3)]
        self.rounds: list[list[str]] = [[]]
        self.paid = [ANTE, ANTE]
        self.to_move: int | None = 0
        self.gave_up: int | None = None

    @classmethod
    def deals(cls) -> list[Leduc]:
        """Return every deal once; they are equally likely."""
        deals = list(permutations(CARDS, 3))
        games = [cls(Random(0)) for _ in deals]
        for game, cards in zip(games, deals, strict=True):
            game.cards = list(cards)
        return games

    def __deepcopy__(self, memo: dict[int, object]) -> Leduc:
        """Copy what a move changes: all lines of play are walked for `exploitability`."""
        game = copy.copy(self)
        game.rounds, game.paid = [[*actions] for actions in self.rounds], [*self.paid]
        return game

    def view(self, seat: int) -> str:
        table = f" On the table: {self.cards[2]}." if len(self.rounds) > 1 else ""
        done = "; ".join(", ".join(actions) or "nothing yet" for actions in self.rounds)
        return f"You are player {seat + 1} and hold the {self.cards[seat]}.{table} Done: {done}."

    def legal(self) -> list[str]:
        num_bets = sum(action in ("bet", "raise") for action in self.rounds[-1])
        if not num_bets:
            return ["check", "bet"]
        return ["call", "fold", "raise"] if num_bets < MOST_BETS else ["call", "fold"]

    def play(self, action: str) -> None:
        seat, actions = self.to_move, self.rounds[-1]
        assert seat is not None, "the game is over"
        actions.append(action)
        if action == "fold":
            self.forfeit(seat)
            return
        if action != "check":
            bet = BETS[len(self.rounds) - 1] if action in ("bet", "raise") else 0
            self.paid[seat] = self.paid[1 - seat] + bet
        if action == "call" or actions == ["check", "check"]:
            self._end_round()
        else:
            self.to_move = 1 - seat

    def forfeit(self, seat: int) -> None:
        self.gave_up, self.to_move = seat, None

    def payoffs(self) -> list[float]:
        """Return the payoffs: the loser loses what it has paid, and equal cards share."""
        loser = self.gave_up
        if loser is None:
            first, second = map(self._strength, range(2))
            if first == second:
                return [0.0, 0.0]
            loser = 0 if first < second else 1
        lost = float(self.paid[loser])
        return [-lost if seat == loser else lost for seat in range(2)]

    def _end_round(self) -> None:
        if len(self.rounds) == len(BETS):
            self.to_move = None
        else:
            self.rounds.append([])
            self.to_move = 0

    def _strength(self, seat: int) -> tuple[bool, int]:
        card = self.cards[seat]
        return card == self.cards[2], RANKS.index(card)
