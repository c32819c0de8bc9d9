"""Measures how exploitable a table becomes that plays Kuhn poker against itself.

The table has a row for each of the 12 things that a seat to move can see; both seats are its own.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

import numpy as np

from rolecall.algorithms.base import Algorithm
from rolecall.algorithms.reinforce_baseline import ReinforceBaseline
from rolecall.core.types import Episode, Task, Turn
from rolecall.environments.games.exploitability import Strategy, cross_play, exploitability
from rolecall.environments.games.kuhn import MOVES, Kuhn
from rolecall_lab.proofs import Claim
from rolecall_lab.proofs.tabular import Table, update

NUM_SEEDS = 3
NUM_STEPS, NUM_GAMES, LR = 64, 96, 2.0
DEALS = Kuhn.deals()
TASK = Task("kuhn", Kuhn.rules, None, {"source": "kuhn"})


def _views() -> dict[str, list[str]]:
    """Map what a seat to move can see to what it may do."""
    views = {}
    for deal in DEALS:
        for history, (seat, legal) in MOVES.items():
            game = copy.copy(deal)
            game.done = history.split()
            views[game.view(seat)] = legal
    return views


VIEWS = _views()
ROW = {view: row for row, view in enumerate(VIEWS)}


def as_strategy(table: Table) -> Strategy:
    """Return the table row by row, as probabilities of the legal actions."""
    rows = table.probabilities().tolist()
    return {
        view: dict(zip(legal, row, strict=True))
        for (view, legal), row in zip(VIEWS.items(), rows, strict=True)
    }


def learn(algorithm: Algorithm, *, seed: int) -> Table:
    """Train a table from uniform play, with every deal equally often in a step."""
    random = np.random.default_rng(seed)
    table = Table([[0.5, 0.5]] * len(VIEWS))
    for step in range(NUM_STEPS):
        logprobs = table.logits.detach().log_softmax(-1).numpy()
        episodes = [
            _game(f"{step}:{number:03}", DEALS[number % len(DEALS)], logprobs, random)
            for number in range(NUM_GAMES)
        ]
        algorithm.credit(episodes)
        update(table, [t for e in episodes for t in e.turns], algorithm, lr=LR)
        algorithm.after_step(step)
    return table


def _game(name: str, deal: Kuhn, logprobs: np.ndarray, random: np.random.Generator) -> Episode:
    game = copy.copy(deal)
    game.done = []
    turns: list[Turn] = []
    while (seat := game.to_move) is not None:
        row = ROW[game.view(seat)]
        action = int(random.random() > np.exp(logprobs[row, 0]))
        turn = Turn(
            id=f"{name}/{len(turns)}",
            task=TASK.id,
            episode=name,
            agent=f"seat {seat}",
            policy="player",
            path=(len(turns),),
            prompt=np.array([row], dtype=np.int32),
            tokens=np.array([action], dtype=np.int32),
            logprobs=logprobs[row, action : action + 1],
            seat=str(seat),
        )
        turns.append(turn)
        game.play(game.legal()[action])
    won = {f"seat {seat}": payoff for seat, payoff in enumerate(game.payoffs())}
    return Episode(name, TASK, 0, 0, turns, won)


def claims() -> Iterator[Claim]:
    """Yield claims that leave room to the 0.11 to 0.13, and 0.20 to 0.25, that were measured."""
    strategies = [as_strategy(learn(ReinforceBaseline(), seed=seed)) for seed in range(NUM_SEEDS)]
    uniform = exploitability(DEALS, [{}, {}])
    exploitabilities = [exploitability(DEALS, [strategy, strategy]) for strategy in strategies]
    yield Claim(
        f"Self-play of Kuhn poker, {NUM_STEPS} steps of {NUM_GAMES} games, {NUM_SEEDS} seeds: "
        "what can be won of the player.",
        f"at most 0.2 in every run; of uniform play it is {uniform:.4f} (11/24)",
        ", ".join(f"{value:.4f}" for value in exploitabilities),
        max(exploitabilities) <= 0.2 and abs(uniform - 11 / 24) < 1e-9,
    )
    won = [cross_play(DEALS, {"player": s, "uniform": {}})["player", "uniform"] for s in strategies]
    yield Claim(
        "The same players against uniform play: what they win a game.",
        "at least 0.1 in every run",
        ", ".join(f"{value:.4f}" for value in won),
        min(won) >= 0.1,
    )
