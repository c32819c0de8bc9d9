"""Measures whether two agents cooperate in the iterated prisoner's dilemma, and who exploits them.

An agent sees what both did in the round before. Its values are exact: they are computed backwards
from the last round. A2C defects; with Advantage Alignment (2406.14662) an agent also values what
helps another whose choices have helped it. It is a class of this file and no algorithm of the
package, since it is defined for two agents that act at once and are each paid round by round.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from pydantic import Field

from rolecall.algorithms.a2c import A2c
from rolecall.core.credit import Compared
from rolecall.core.types import Episode, Task, Turn
from rolecall_lab.proofs import Claim
from rolecall_lab.proofs.tabular import Doubles, Table, agent_turns, first_advantages, update
from rolecall_lab.seeds import Mean, over_seeds

AGENTS = ("first", "second")
PAYOFF = np.array([[-1.0, -3.0], [0.0, -2.0]])  # [own, other]; 0 cooperates, 1 defects
# States: the start, and what both did: CC, CD, DC, DD, its own action first.
START, NUM_STATES = 0, 5
NEXT = np.array([[1, 2], [3, 4]], dtype=np.int32)  # [own, other]
MIRROR = np.array([0, 1, 3, 2, 4])  # the state as the other agent sees it
NUM_ROUNDS, GAMMA = 8, 0.9
NUM_STEPS, NUM_GAMES, LR = 100, 16, 4.0
NUM_SEEDS = 5
DEFECTOR = np.tile([0.0, 1.0], (NUM_STATES, 1))
TIT_FOR_TAT = np.eye(2)[[0, 0, 1, 0, 1]]


class AdvantageAlignment(A2c):
    """A2C that adds the other agent's advantage, times what the agent has gained so far."""

    beta: float = Field(1.0, ge=0)
    """Weight of the other agent's advantage."""

    def credit(self, episodes: list[Episode]) -> None:
        """A + beta (sum of gamma^(t-k) A_k over rounds k before t) A', with A' the other's."""
        super().credit(episodes)
        for episode in episodes:
            first, second = (agent_turns([episode], agent) for agent in AGENTS)
            gains, others = first_advantages(first), first_advantages(second)
            self._align(first, gains, others)
            self._align(second, others, gains)

    def _align(self, turns: list[Turn], gains: Doubles, others: Doubles) -> None:
        past = 0.0
        for turn, gain, other in zip(turns, gains.tolist(), others.tolist(), strict=True):
            score = self.beta * past * other
            turn.give_credit(Compared(score, 0.0, 0, {"alignment": score}))
            past = self.gamma_turn * (past + gain)


def compute_values(own: Doubles, other: Doubles, payoff: Doubles) -> Doubles:
    """Return what an agent expects in each round and state, [rounds + 1, states]."""
    joint = own[:, :, None] * other[MIRROR][:, None, :]
    values = np.zeros((NUM_ROUNDS + 1, NUM_STATES))
    for step in reversed(range(NUM_ROUNDS)):
        values[step] = (joint * (payoff + GAMMA * values[step + 1][NEXT])).sum((1, 2))
    return values


def round_payoff(own: Doubles, other: Doubles) -> float:
    """Return the exact payoff of a round, averaged with the discount of the game."""
    weight = sum(GAMMA**step for step in range(NUM_ROUNDS))
    return float(compute_values(own, other, PAYOFF)[0, START]) / weight


def play(team: list[Table], payoffs: list[Doubles], random: np.random.Generator) -> list[Episode]:
    """Play games whose turns hold their payoffs and their exact values."""
    own, other = (table.probabilities() for table in team)
    values = [compute_values(own, other, payoffs[0]), compute_values(other, own, payoffs[1])]
    episodes = [Episode(str(n), Task("dilemma", ""), n, n) for n in range(NUM_GAMES)]
    states = np.zeros((2, NUM_GAMES), dtype=np.int32)
    for step in range(NUM_ROUNDS):
        actions = [table.sample(seen, random) for table, seen in zip(team, states, strict=True)]
        for seat, agent in enumerate(AGENTS):
            mine, theirs = actions[seat], actions[1 - seat]
            logprobs = team[seat].logprobs(states[seat], mine)
            earned = payoffs[seat][mine, theirs].tolist()
            for n, episode in enumerate(episodes):
                turn = Turn(
                    id=f"{n}/{step}.{seat}",
                    task=episode.task.id,
                    episode=episode.id,
                    agent=agent,
                    policy=agent,
                    path=(step, seat),
                    prompt=states[seat, n : n + 1],
                    tokens=mine[n : n + 1],
                    logprobs=logprobs[n : n + 1],
                    world_rewards={"round": earned[n]},
                )
                turn.training.values = values[seat][step, states[seat, n : n + 1]].astype("f4")
                episode.turns.append(turn)
        states = np.stack([NEXT[actions[0], actions[1]], NEXT[actions[1], actions[0]]])
    return episodes


def learn(algorithm: A2c, *, shared: bool = False, seed: int) -> list[Doubles]:
    """Train two agents from fair coins, on payoffs of their own or on the mean of both."""
    random = np.random.default_rng(seed)
    team = [Table([[0.5, 0.5]] * NUM_STATES) for _ in AGENTS]
    payoff = (PAYOFF + PAYOFF.T) / 2 if shared else PAYOFF
    for _ in range(NUM_STEPS):
        episodes = play(team, [payoff, payoff], random)
        algorithm.credit(episodes)
        for agent, table in zip(AGENTS, team, strict=True):
            update(table, agent_turns(episodes, agent), algorithm, lr=LR)
    return [table.probabilities() for table in team]


def measure(algorithm: A2c, *, shared: bool = False) -> tuple[Mean, Mean]:
    """Return what a round pays the agents of a team, and one of them against a defector."""
    teams = [learn(algorithm, shared=shared, seed=seed) for seed in range(NUM_SEEDS)]
    together = [(round_payoff(a, b) + round_payoff(b, a)) / 2 for a, b in teams]
    against = [round_payoff(a, DEFECTOR) for a, _ in teams]
    return over_seeds(together), over_seeds(against)


def claims() -> Iterator[Claim]:
    """Yield what agents earn with one another, and the reciprocal ones against a defector."""
    what = (
        f"Iterated prisoner's dilemma, {NUM_STEPS} steps of {NUM_GAMES} games of {NUM_ROUNDS} "
        f"rounds, {NUM_SEEDS} seeds: payoff of a round "
    )
    options = {"lam": 0.0, "gamma_turn": GAMMA, "value_coef": 0.0}
    both = round_payoff(DEFECTOR, DEFECTOR)
    plain, _ = measure(A2c(**options))
    yield Claim(
        what + "by A2C.",
        f"below -1.9: both defect ({both:g})",
        f"{plain:.3f}",
        plain.high < -1.9,
    )
    friendly, robbed = measure(A2c(**options), shared=True)
    aligned, safe = measure(AdvantageAlignment(**options))
    yield Claim(
        what + "by Advantage Alignment.",
        f"above -1.1: both cooperate ({round_payoff(TIT_FOR_TAT, TIT_FOR_TAT):g})",
        f"{aligned:.3f}",
        aligned.low > -1.1,
    )
    limit = round_payoff(TIT_FOR_TAT, DEFECTOR)
    yield Claim(
        what + "by Advantage Alignment against one that always defects.",
        f"{limit:.3f} +- .05, as tit for tat, which loses the first round alone",
        f"{safe:.3f}",
        abs(safe.mean - limit) + (safe.margin or 0.0) < 0.05,
    )
    yield Claim(
        what + "by A2C that is paid the mean of both: together, and against a defector.",
        "above -1.1, and below -2.4: it cooperates with whoever exploits it",
        f"{friendly:.3f} and {robbed:.3f}",
        friendly.low > -1.1 and robbed.high < -2.4,
    )
