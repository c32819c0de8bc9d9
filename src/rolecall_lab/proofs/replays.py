"""Checks what counterfactual baselines say of replayed turns of the matrix game.

A replay keeps what the other agent said and puts something else in a turn's place: action 0
(`swap`), or all that the policy might have said (`marginal`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

from rolecall.algorithms.base import Algorithm
from rolecall.algorithms.counterfactual import Counterfactual
from rolecall.algorithms.mappo import Mappo
from rolecall.core.types import Episode, Swap
from rolecall_lab.proofs import Claim
from rolecall_lab.proofs.matrix_game import AGENTS, FIRST, PAYOFF, every_episode, team
from rolecall_lab.proofs.tabular import agent_turns, gradient, value

DEFAULT_ACTION = 0
DRAWS = [0] * 7 + [1] * 3  # ten replays that say each action as often as it is likely
SWAP = Counterfactual(
    baseline="text", text=str(DEFAULT_ACTION), replays=1, fraction=1.0, scale=False
)
MARGINAL = Counterfactual(baseline="same", replays=len(DRAWS), fraction=1.0, scale=False)


async def replay(episode: Episode, swap: Swap | None) -> Episode:
    """Return the episode with one other action; the game has no dice."""
    actions = [int(turn.ids[1][0]) for turn in episode.turns]
    if swap is not None:
        actions[swap.path[0]] = DRAWS[swap.draw] if swap.text is None else int(swap.text)
    return replace(episode, rewards={"team": float(PAYOFF[actions[0], actions[1]])})


def credit(algorithm: Counterfactual, *, own_states: bool = False) -> list[Episode]:
    """Every episode of the game with this algorithm's advantages."""
    episodes = every_episode(own_states=own_states)
    asyncio.run(algorithm.prepare(episodes, replay))
    algorithm.credit(episodes)
    return episodes


def advantages(algorithm: Counterfactual, joint: tuple[int, int]) -> list[float]:
    """Return both agents' advantages where this joint action was played."""
    for episode in credit(algorithm):
        if tuple(int(turn.ids[1][0]) for turn in episode.turns) == joint:
            return [float(turn.advantages[0]) for turn in episode.turns]  # type: ignore[index]
    raise AssertionError(f"{joint} is never played")


def moments(episodes: list[Episode], algorithm: Algorithm) -> tuple[float, float]:
    """Mean and variance over episodes of the ascent direction on agent 1's logit of action 1."""
    turns = agent_turns(episodes, FIRST)
    slopes = -gradient(team(len(turns))[FIRST], turns, algorithm)[:, 1].numpy() * len(turns)
    return float(slopes.mean()), float(slopes.var())


def constant_moments(baseline: float) -> tuple[float, float]:
    """Return the moments where a critic expects the same of every episode."""
    episodes, algorithm = every_episode(own_states=True), Mappo(whiten=False, epochs=1)
    for agent in AGENTS:
        value(agent_turns(episodes, agent), baseline)
    algorithm.credit(episodes)
    return moments(episodes, algorithm)


def claims() -> Iterator[Claim]:
    """Single advantages, then all baselines' gradients."""
    for algorithm, how, joint, agents, expected in (
        (SWAP, "swap to 0", (1, 1), (0, 1), -3.0),
        (MARGINAL, "marginal", (1, 1), (0, 1), -2.1),
        (SWAP, "swap to 0", (0, 1), (1,), 2.0),
        (MARGINAL, "marginal", (0, 1), (1,), 1.4),
    ):
        obtained = [advantages(algorithm, joint)[agent] for agent in agents]
        who = "both agents" if len(agents) == 2 else "agent 2"
        yield Claim(
            f"Matrix game, joint action {joint}: counterfactual advantage of {who}, {how}.",
            f"{expected:g}",
            ", ".join(f"{a:.6g}" for a in obtained),
            all(abs(a - expected) < 1e-6 for a in obtained),
        )
    gradients = {
        "none": (constant_moments(0.0), 0.520),
        "constant .75": (constant_moments(0.75), 0.339),
        "marginal": (moments(credit(MARGINAL, own_states=True), MARGINAL), 0.416),
        "swap": (moments(credit(SWAP, own_states=True), SWAP), 0.797),
    }
    for baseline, ((mean, variance), expected) in gradients.items():
        yield Claim(
            f"Matrix game, baseline {baseline}: mean and variance of the gradient on agent 1's "
            "logit over every episode.",
            f"0.105 and {expected:.3f}",
            f"{mean:.6f} and {variance:.6f}",
            abs(mean - 0.105) < 1e-6 and round(variance, 3) == expected,
        )
