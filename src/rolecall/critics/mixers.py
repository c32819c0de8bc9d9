"""Mixes the agents' utilities into a value of the team, and says what each agent added.

VDN (1706.05296) sums the utilities, QMIX (1803.11485) mixes them monotonely. Either way the best
joint action is every agent's own best action. Legend: B rows, A agents in the order of the team,
S numbers of state, W mixing width, U actions or candidates of one agent.
"""

from __future__ import annotations

from functools import reduce
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ROLE_SIZE = 16  # numbers of one learned role embedding


class Mixer(Protocol):
    """q [B, A], state [B, S], active [B, A] (bool) -> the value of the team, [B]."""

    def __call__(self, q: Tensor, state: Tensor, active: Tensor) -> Tensor: ...


def _sum_over_agents(columns: Tensor) -> Tensor:
    """Sum over dim 1, agent after agent: a zero column anywhere then leaves every bit alone."""
    return reduce(torch.add, columns.unbind(1))


class Vdn(nn.Module):
    """The team is worth the sum of its active agents' utilities (1706.05296); state is unused.

    q (1.2, .3), both active -> 1.5; only the first active -> 1.2.
    """

    def forward(self, q: Tensor, state: Tensor, active: Tensor) -> Tensor:
        """Sum the active agents' q: q [B, A], state [B, S], active [B, A] (bool) -> [B]."""
        return _sum_over_agents(q.masked_fill(~active, 0.0))


def monotone_mix(q: Tensor, w1: Tensor, *, b1: Tensor, w2: Tensor, b2: Tensor) -> Tensor:
    """Return Q = ELU(sum_i q_i |w1_i| + b1) . |w2| + b2, which never falls when a utility rises
    (1803.11485).

    q [B, A], w1 [B, A, W], b1 [B, W], w2 [B, W], b2 [B] -> [B]. W = 1, w1 (.5, -.5), b1 0, w2 2,
    b2 .1: q (1.2, .3) -> ELU(.75) * 2 + .1 = 1.6; q (-1, 0) -> -.686939.
    """
    hidden = F.elu(_sum_over_agents(q.unsqueeze(-1) * w1.abs()) + b1)
    return (hidden * w2.abs()).sum(-1) + b2


class Qmix(nn.Module):
    """The team is worth a mix of utilities whose weights are made from the state (1803.11485).

    As published, but for one thing: w1 of an agent is made from (state, role embedding), so that
    one network serves teams of 1 to `num_agents`. Agent i of the team has role i. q (1.2, .3) with
    the weights of the example above -> 1.6. The same seed gives the same weights.
    """

    def __init__(
        self, num_agents: int, state_size: int, *, width: int = 32, hidden: int = 64, seed: int = 0
    ) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            self.roles = nn.Embedding(num_agents, ROLE_SIZE)
            self.w1 = _two_layers(state_size + ROLE_SIZE, hidden, width)
            self.b1 = nn.Linear(state_size, width)
            self.w2 = _two_layers(state_size, hidden, width)
            self.b2 = _two_layers(state_size, width, 1)

    def forward(self, q: Tensor, state: Tensor, active: Tensor) -> Tensor:
        """Mix the agents' q into one value; raises ValueError for more than `num_agents` agents.

        q [B, A], state [B, S], active [B, A] (bool) -> [B]; A up to `num_agents`.
        """
        num_agents = q.shape[1]
        if num_agents > self.roles.num_embeddings:
            raise ValueError(f"{num_agents} agents, but {self.roles.num_embeddings} roles")
        # Agent by agent: a matrix product over B * A rows may round otherwise when A grows.
        roles = self.roles.weight[:num_agents].expand(len(q), -1, -1).unbind(1)
        w1 = torch.stack([self.w1(torch.cat([state, role], -1)) for role in roles], 1)
        b1, w2, b2 = self.b1(state), self.w2(state), self.b2(state).squeeze(-1)
        return monotone_mix(q.masked_fill(~active, 0.0), w1, b1=b1, w2=w2, b2=b2)


def _two_layers(num_in: int, hidden: int, num_out: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(num_in, hidden), nn.ReLU(), nn.Linear(hidden, num_out))


@torch.no_grad()
def advantages(mixer: Mixer, q: Tensor, v: Tensor, state: Tensor, active: Tensor) -> Tensor:
    """Return A_i = f(q_i, q_-i; s) - f(v_i, q_-i; s): what the team gained by agent i's words.

    q, v, active [B, A], state [B, S] -> [B, A], 0 for inactive agents, no gradient. VDN, where A_i
    is q_i - v_i: q (1.2, .3), v (1.0, .5) -> (.2, -.2). The formulation is our own.
    """
    team = mixer(q, state, active)
    gains = torch.zeros_like(q)
    for i in range(q.shape[1]):
        without = q.clone()
        without[:, i] = v[:, i]
        gains[:, i] = team - mixer(without, state, active)
    return gains


@torch.no_grad()
def double_q_target(
    target_mixer: Mixer,
    reward: Tensor,
    *,
    done: Tensor,
    live: Tensor,
    target: Tensor,
    state: Tensor,
    active: Tensor,
    gamma: float,
) -> Tensor:
    """Compute y = r + gamma * (1 - done) * Qbar(s', argmax by live q), valued by the target copy.

    reward, done (bool) [B]; of the next state s': live and target utilities [B, A, U], state
    [B, S], active [B, A] -> [B], no gradient. VDN, r 1, gamma .5, live ((0, 1), (1, 0)), target
    ((3, 4), (5, 6)) -> 1 + .5 * (4 + 5) = 5.5; done -> 1. Source: 1803.11485 with 1509.06461.
    """
    chosen = target.gather(-1, live.argmax(-1, keepdim=True)).squeeze(-1)
    future = target_mixer(chosen, state, active)
    return reward + gamma * future.masked_fill(done, 0.0)
