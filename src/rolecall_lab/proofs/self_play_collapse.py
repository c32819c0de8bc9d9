"""Measures what self-play forgets without a pool of earlier weights, and what it keeps with one.

An opener says one of three words, a replier hears it and wins with the same word; one policy plays
both seats. Replies to different openings share nine tenths of their weights, as prompts do in a
language model, so a reply that is no longer practised is overwritten by the one that is.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import numpy as np

from rolecall.algorithms.reinforce_baseline import ReinforceBaseline
from rolecall.config.schema import OpponentPoolConfig
from rolecall.core.types import Episode
from rolecall.models.language_model import LanguageModel
from rolecall.rollout.opponent_pool import OpponentPool
from rolecall_lab.proofs import Claim
from rolecall_lab.proofs.tabular import (
    Table,
    agent_turns,
    make_episodes,
    overlap_states,
    update,
)
from rolecall_lab.seeds import over_seeds

NUM_WORDS = 3
OPENER, REPLIER = "opener", "replier"
SHARE = 0.9  # of a step for one reply that moves the others too
NUM_STEPS, NUM_GAMES = 200, 96
FAST, SLOW = 24.0, 6.0  # learning rates
NUM_SEEDS = 5


def make_player() -> Table:
    """Return a uniform table: state 0 opens, and state 1 + w replies to word w."""
    player = Table([[1 / NUM_WORDS] * NUM_WORDS] * (1 + NUM_WORDS))
    overlap_states(player, range(1, 1 + NUM_WORDS), SHARE)
    return player


def play(
    opener: Table, replier: Table, number: int, random: np.random.Generator, *, start: int = 0
) -> list[Episode]:
    """Play games of two tables, numbered from `start`; the winner gets 1 and the loser -1."""
    nothing = np.zeros(number, dtype=np.int32)
    openings = opener.sample(nothing, random)
    replies = replier.sample(1 + openings, random)
    won = np.where(replies == openings, 1.0, -1.0)
    return make_episodes(
        {OPENER: opener, REPLIER: replier},
        np.stack([openings, replies], axis=1),
        {OPENER: -won, REPLIER: won},
        states=np.stack([nothing, 1 + openings], axis=1),
        start=start,
        in_turn=True,
    )


def play_opponent(player: Table, opponent: Table, random: np.random.Generator) -> list[Episode]:
    """Let the player have each seat in half of the games, and train on its own turns alone."""
    half = NUM_GAMES // 2
    first = play(player, opponent, half, random)
    second = play(opponent, player, half, random, start=half)
    for episodes, seat in ((first, REPLIER), (second, OPENER)):
        for turn in agent_turns(episodes, seat):
            turn.trained = False
    return first + second


def learn(*, pool: bool, lr: float, seed: int) -> Table:
    """Train a player against itself, or against a pool of its earlier weights."""
    random = np.random.default_rng(seed)
    player, opponent = make_player(), make_player()
    config = OpponentPoolConfig(of="player")
    opponents = OpponentPool(cast(LanguageModel, player), config, seed=seed)
    algorithm = ReinforceBaseline()
    for step in range(1, NUM_STEPS + 1):
        if pool:
            opponent.load_state_dict(opponents.weights_after(opponents.kept_step(step)))
            episodes = play_opponent(player, opponent, random)
        else:
            episodes = play(player, player, NUM_GAMES, random)
        algorithm.credit(episodes)
        turns = [turn for episode in episodes for turn in episode.turns if turn.trained]
        update(player, turns, algorithm, lr=lr)
        algorithm.after_step(step)
        opponents.after_step(step)
    return player


def count_losses(player: Table) -> float:
    """Return how often the player replies wrongly to the opening that it answers worst."""
    replies = player.probabilities()[1:]
    return float(1 - replies.diagonal().min())


def claims() -> Iterator[Claim]:
    """Yield how often the best opener wins against players that were trained in three ways."""
    what = (
        f"Self-play of openings and replies, {NUM_STEPS} steps of {NUM_GAMES} games, {NUM_SEEDS} "
        "seeds: how often the best opener beats the player, "
    )

    def losses(*, pool: bool, lr: float) -> list[float]:
        return [count_losses(learn(pool=pool, lr=lr, seed=seed)) for seed in range(NUM_SEEDS)]

    alone = over_seeds(losses(pool=False, lr=FAST))
    yield Claim(
        what + f"learning rate {FAST:g}, against its newest weights.",
        "above .8: it practises the reply to one opening and forgets the others",
        f"{alone:.3f}",
        alone.low > 0.8,
    )
    pooled = over_seeds(losses(pool=True, lr=FAST))
    yield Claim(
        what + f"learning rate {FAST:g}, against a pool of earlier weights.",
        "below .2: the pool keeps the openings of the beginning",
        f"{pooled:.3f}",
        pooled.high < 0.2,
    )
    slow = over_seeds(losses(pool=False, lr=SLOW))
    yield Claim(
        what + f"learning rate {SLOW:g}, against its newest weights.",
        "below .2: an opener that still tries everything needs no pool",
        f"{slow:.3f}",
        slow.high < 0.2,
    )
