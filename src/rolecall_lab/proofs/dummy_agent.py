"""Measures how much credit an agent gets whose words do nothing: r = a1 + N(0, .1)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import numpy as np
import torch
from torch.nn import functional as F

from rolecall.algorithms.base import Replay
from rolecall.algorithms.counterfactual import Counterfactual
from rolecall.algorithms.mixing import Vdn
from rolecall.algorithms.rloo import Rloo
from rolecall.core.seeding import derive_seed
from rolecall.core.types import Episode, Swap
from rolecall.critics import mixers
from rolecall_lab.proofs import Claim
from rolecall_lab.proofs.tabular import Table, agent_turns, first_advantages, make_episodes

NUM_EPISODES, ATTEMPTS = 4096, 256
NOISE = 0.1
FIT_STEPS, FIT_RATE = 200, 0.4
DUMMY = "second"


def play(*, seed: int) -> list[Episode]:
    """Fair coins of both agents; 16 tasks of 256 attempts."""
    random = np.random.default_rng(seed)
    coins = random.integers(2, size=(NUM_EPISODES, 2), dtype=np.int32)
    team = {agent: Table([[0.5, 0.5]]) for agent in ("first", DUMMY)}
    rewards = {"team": coins[:, 0] + draw_noise(np.arange(NUM_EPISODES))}
    return make_episodes(team, coins, rewards, attempts=ATTEMPTS)


def draw_noise(seeds: np.ndarray) -> np.ndarray:
    """Return the world's noise, a function of the episode's seed."""
    return _noise()[seeds]


@cache
def _noise() -> np.ndarray:
    return np.random.default_rng(derive_seed("noise")).normal(scale=NOISE, size=2 * NUM_EPISODES)


def replay_with(*, fresh: bool) -> Replay:
    """Replays of one other action, in the same world or with fresh noise."""

    async def replay(episode: Episode, swap: Swap | None) -> Episode:
        assert swap is not None
        coins = [int(turn.ids[1][0]) for turn in episode.turns]
        coins[swap.path[0]] = 1 - coins[swap.path[0]]
        seed = episode.seed + NUM_EPISODES * fresh
        return replace(episode, rewards={"team": coins[0] + float(draw_noise(np.array(seed)))})

    return replay


def dummy_moment(episodes: list[Episode]) -> float:
    """E[A_2^2]."""
    return float((first_advantages(agent_turns(episodes, DUMMY)) ** 2).mean())


def shared_return() -> float:
    """Both agents get what the team earned above the task's other attempts."""
    episodes = play(seed=0)
    Rloo().credit(episodes)
    return dummy_moment(episodes)


def counterfactual(*, fresh: bool) -> float:
    """Agent 2's coin is turned over in each episode."""
    episodes = play(seed=0)
    algorithm = Counterfactual(fraction=1.0, scale=False)
    by_task = [episodes[n : n + ATTEMPTS] for n in range(0, NUM_EPISODES, ATTEMPTS)]
    for group in by_task:
        asyncio.run(algorithm.prepare(group, replay_with(fresh=fresh)))
    algorithm.credit(episodes)
    return dummy_moment(episodes)


def fit_vdn() -> float:
    """Tabular utilities q and v, fitted to the targets by least squares; A before it is scaled."""
    episodes, mixer = play(seed=0), mixers.Vdn()
    y = torch.tensor([Vdn().targets(episode) for episode in episodes])[:, 0]
    coins = torch.tensor([[int(turn.ids[1][0]) for turn in e.turns] for e in episodes])
    nothing, active = torch.zeros(len(y), 1), torch.ones_like(coins, dtype=torch.bool)
    utilities, expected = (torch.zeros(size, requires_grad=True) for size in ((2, 2), (1, 2)))
    for _ in range(FIT_STEPS):
        q, v = utilities[torch.arange(2), coins], expected.expand(len(y), 2)
        own = ((v - q.detach()) ** 2).sum(1).mean()
        loss = F.mse_loss(mixer(q, nothing, active), y) + own
        for table, slope in zip(
            (utilities, expected), torch.autograd.grad(loss, (utilities, expected)), strict=True
        ):
            table.data.add_(slope, alpha=-FIT_RATE)
    q, v = utilities[torch.arange(2), coins], expected.expand(len(y), 2)
    return float((mixers.advantages(mixer, q, v, nothing, active)[:, 1] ** 2).mean())


def claims() -> Iterator[Claim]:
    """Yield claims from all of the noise to none of it."""
    for what, expected, tolerance, moment in (
        ("the shared return, less the other attempts'", 0.26, 0.005, shared_return()),
        ("a replay with fresh noise", 0.0201, 0.0015, counterfactual(fresh=True)),
    ):
        yield _claim(
            what, f"{expected:g} +- {tolerance:g}", moment, abs(moment - expected) <= tolerance
        )
    same = counterfactual(fresh=False)
    yield _claim("a replay with the same noise", "0", same, same == 0.0)
    vdn = fit_vdn()
    yield _claim(
        "VDN's fitted utilities, before the credit is scaled",
        "< 5e-5 (least squares leaves (.1 / 32)^2 / 4 = 2.4e-6 on average)",
        vdn,
        vdn < 5e-5,
    )


def _claim(what: str, expected: str, obtained: float, ok: bool) -> Claim:
    claim = f"r = a1 + N(0, .1), n {NUM_EPISODES}: E[A^2] of the agent that changes nothing, by "
    return Claim(claim + what + ".", expected, f"{obtained:.4g}", ok)
