"""Measures what VDN and QMIX learn of two matrix games in `value` mode.

Two-step game (1803.11485): agent 0 picks 2A, which pays 7 whatever is played, or 2B, which pays
[[0,1],[1,8]]. A sum cannot represent 2B and settles for 7; a monotone mix can and finds 8. XOR
[[0,1],[1,0]] is beyond both. Legend: S states; two agents with two actions each.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rolecall.critics.mixers import Qmix, Vdn, double_q_target
from rolecall_lab.proofs import Claim

GAMMA = 0.99
LEARNING_RATE = 5e-3
NUM_STEPS = 2000
COPY_EVERY = 100  # steps from one target copy to the next
TOLERANCE = 0.02  # of a table's entry
END = -1  # in `next_state`: the game is over


@dataclass(frozen=True, slots=True)
class Game:
    """A game of two agents with two actions each, that starts in state 0."""

    payoff: Tensor
    """[S, 2, 2] reward of each joint action."""
    next_state: Tensor
    """[S, 2, 2] int64: where each joint action leads, END where the game is over."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Holds what a mixer is known to make of the two-step game."""

    mixer: str
    """Its name."""
    pays: int
    """The greedy return."""
    first_step: list[list[float]]
    """[2, 2] Q of the first step: gamma times what 2A and 2B are worth, whatever agent 1 does."""
    table: list[list[float]]
    """[2, 2] Q of state 2B."""


@dataclass(frozen=True, slots=True)
class Solution:
    """Holds what was learned of a game."""

    tables: Tensor
    """[S, 2, 2] Q of each state and joint action: of TWO_STEP the first step, 2A and 2B."""
    greedy_return: float
    """Undiscounted return when each agent takes its own best action."""


TWO_STEP = Game(
    payoff=torch.tensor([[[0.0, 0.0], [0.0, 0.0]], [[7.0, 7.0], [7.0, 7.0]], [[0, 1], [1, 8]]]),
    next_state=torch.tensor([[[1, 1], [2, 2]], [[END, END], [END, END]], [[END, END], [END, END]]]),
)
VDN = Answer("VDN", 7, [[6.93, 6.93], [6.435, 6.435]], [[-1.5, 2.5], [2.5, 6.5]])
QMIX = Answer("QMIX", 8, [[6.93, 6.93], [7.92, 7.92]], [[0, 1], [1, 8]])
XOR = Game(payoff=torch.tensor([[[0.0, 1.0], [1.0, 0.0]]]), next_state=torch.full((1, 2, 2), END))


def learn(mixer: nn.Module, game: Game, *, seed: int) -> Solution:
    """Fit tabular utilities and `mixer` (in place) to `game`, every joint action in every step.

    `learn(Vdn(), XOR, seed=0).tables` -> [[[.5, .5], [.5, .5]]], whatever the seed.
    """
    num_states = len(game.payoff)
    state, *actions = torch.cartesian_prod(torch.arange(num_states), *[torch.arange(2)] * 2).T
    reward, next_state = game.payoff.flatten(), game.next_state.flatten()
    done, after = next_state == END, next_state.clamp_min(0)
    world = torch.eye(num_states)
    active = torch.ones(len(state), 2, dtype=torch.bool)

    generator = torch.Generator().manual_seed(seed)
    utilities = nn.Parameter(0.1 * torch.randn(num_states, 2, 2, generator=generator))
    optimiser = torch.optim.Adam([utilities, *mixer.parameters()], lr=LEARNING_RATE, fused=True)

    def values() -> Tensor:
        chosen = torch.stack([utilities[state, i, action] for i, action in enumerate(actions)], 1)
        return mixer(chosen, world[state], active)

    for step in range(NUM_STEPS):
        if step % COPY_EVERY == 0:
            target_mixer, target = copy.deepcopy(mixer), utilities.detach()[after]
        y = double_q_target(
            target_mixer,
            reward,
            done=done,
            live=utilities[after],
            target=target,
            state=world[after],
            active=active,
            gamma=GAMMA,
        )
        optimiser.zero_grad()
        F.mse_loss(values(), y).backward()
        optimiser.step()
    tables = values().detach().view_as(game.payoff)
    return Solution(tables, play(game, utilities.detach()))


def play(game: Game, utilities: Tensor) -> float:
    """Return what a game pays when each agent takes the action of its own largest utility.

    `utilities` [S, 2, 2] by state, agent and action; XOR with ((0, 1), (1, 0)): actions 1, 0 -> 1.
    """
    state, earned = 0, 0.0
    while state != END:
        first, second = utilities[state].argmax(-1).tolist()
        earned += float(game.payoff[state, first, second])
        state = int(game.next_state[state, first, second])
    return earned


def learn_vdn(game: Game, *, seed: int) -> Solution:
    """Learn the game by a sum."""
    return learn(Vdn(), game, seed=seed)


def learn_qmix(game: Game, *, seed: int) -> Solution:
    """Learn the game by a monotone mix; the mixer sees the state as one-hot numbers."""
    return learn(Qmix(2, len(game.payoff), seed=seed), game, seed=seed)


def two_step_claims(solutions: list[Solution], answer: Answer) -> Iterator[Claim]:
    """Yield each seed's greedy return, first step and table of 2B beside the known ones."""
    num_seeds = len(solutions)
    num_right = sum(solution.greedy_return == answer.pays for solution in solutions)
    yield Claim(
        f"Two-step game: the greedy return of {answer.mixer} is {answer.pays}.",
        f"{answer.pays} in {num_seeds}/{num_seeds} seeds",
        f"{answer.pays} in {num_right}/{num_seeds} seeds",
        num_right == num_seeds,
    )
    tables = torch.stack([solution.tables for solution in solutions])
    yield _near(
        f"Two-step game: {answer.mixer} expects this of the first step.",
        known=answer.first_step,
        learned=tables[:, 0],
    )
    yield _near(
        f"Two-step game: {answer.mixer} learns this table of 2B.",
        known=answer.table,
        learned=tables[:, 2],
    )


def _near(claim: str, *, known: list[list[float]], learned: Tensor) -> Claim:
    """Every seed's table of `learned` [seeds, 2, 2] within the tolerance of `known` [2, 2]."""
    worst = float((learned - torch.tensor(known)).abs().max())
    mean = torch.round(learned.double().mean(0), decimals=3) + 0.0  # no -0.0
    obtained = f"{mean.tolist()} on average, off by {worst:.4f} at most"
    return Claim(claim, f"{known}, each seed within {TOLERANCE}", obtained, worst <= TOLERANCE)


def xor_claims(vdn: list[Solution], qmix: list[Solution]) -> Iterator[Claim]:
    """XOR's squared error: every sum leaves 1/4; by isotonic regression no mix is below 1/6."""
    by_sum, by_mix = (
        [F.mse_loss(solution.tables, XOR.payoff).item() for solution in solutions]
        for solutions in (vdn, qmix)
    )
    yield Claim(
        "XOR: the mean squared error of VDN is a quarter.",
        "0.2500",
        ", ".join(f"{mse:.4f}" for mse in by_sum),
        all(abs(mse - 1 / 4) <= 1e-4 for mse in by_sum),
    )
    yield Claim(
        "XOR: the mean squared error of QMIX is at least a sixth.",
        ">= 0.1667",
        ", ".join(f"{mse:.4f}" for mse in by_mix),
        all(mse >= 1 / 6 - 1e-3 for mse in by_mix),
    )


def claims() -> Iterator[Claim]:
    """Seeds of each mixer on both games; a sum has one answer, so that few of them will do."""
    yield from two_step_claims([learn_vdn(TWO_STEP, seed=seed) for seed in range(3)], VDN)
    yield from two_step_claims([learn_qmix(TWO_STEP, seed=seed) for seed in range(5)], QMIX)
    yield from xor_claims(
        [learn_vdn(XOR, seed=0)],
        [learn_qmix(XOR, seed=seed) for seed in range(3)],
    )
