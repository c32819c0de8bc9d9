"""Compares simultaneous and sequential updates (HAPPO, 2109.11251) in the matrix game.

Each agent's own best response is 1, and both with 1 earn the worst. An agent that knows what the
other's update changed stays with 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from rolecall.algorithms.happo import Happo
from rolecall.algorithms.mappo import Mappo
from rolecall.core.interfaces.algorithm import Outputs
from rolecall.core.types import Episode, Turn
from rolecall_lab.proofs import Claim
from rolecall_lab.proofs.matrix_game import (
    AGENTS,
    every_episode,
    expected_payoff,
    payoffs,
    team,
)
from rolecall_lab.proofs.tabular import (
    Doubles,
    Table,
    agent_turns,
    descend,
    make_episodes,
    pack_turns,
    prepare_batches,
    table_logprobs,
    update,
    value,
)

NUM_EPISODES, NUM_STEPS, LEARNING_RATE = 4000, 200, 0.5
NUM_SEEDS = 4
KNOWN = {  # of J, by clip
    0.2: ".79 to .80 both",
    0.5: ".77 to .79 and .84 to .90",
    1.0: ".58 to .61 and 1.17 to 1.22",
}
SAME = 0.02  # largest difference that is none


def best_responses(algorithm: Mappo, order: Sequence[str]) -> tuple[list[Doubles], float]:
    """One exact best response of each agent in turn: its action values [2], and J after all."""
    episodes, agents = every_episode(), team()
    value([turn for episode in episodes for turn in episode.turns], 0.0)
    algorithm.credit(episodes)
    seen = []
    for agent in order:
        turns = agent_turns(episodes, agent)
        for turn in turns:
            turn.training.prox_logprobs = turn.logprobs
        seen.append(action_values(turns, algorithm))
        agents[agent] = Table([(seen[-1] == seen[-1].max()).astype(float).tolist()])
        tell(algorithm, agents[agent], episodes, agent=agent)
    return seen, expected_payoff(agents)


def action_values(turns: list[Turn], algorithm: Mappo) -> Doubles:
    """Return what the loss would gain from each action: [2].

    It is a mean over the turns that said the action.
    """
    (batch,) = pack_turns(turns, algorithm)
    assert batch.prox_logprobs is not None
    logprobs = torch.from_numpy(batch.prox_logprobs).requires_grad_()
    algorithm.loss(batch, Outputs(logprobs)).total.backward()
    assert logprobs.grad is not None
    gains = np.bincount(batch.tokens, weights=-logprobs.grad.numpy(), minlength=2)
    return gains / np.bincount([int(turn.ids[1][0]) for turn in turns])


def tell(algorithm: Mappo, table: Table, episodes: list[Episode], *, agent: str) -> None:
    """Tell the algorithm what an agent's update made of its turns; MAPPO does not care."""
    turns = agent_turns(episodes, agent)
    for turn, logprobs in zip(turns, table_logprobs(table, turns), strict=True):
        turn.training.new_logprobs = logprobs
    algorithm.after_update(agent, episodes)


def sample(*, seed: int) -> list[Episode]:
    """Episodes of the game, with the mean reward as what the critic expected."""
    agents, random = team(), np.random.default_rng(seed)
    states = np.zeros(NUM_EPISODES, dtype=np.int32)
    actions = np.stack([table.sample(states, random) for table in agents.values()], axis=1)
    rewards = payoffs(actions)
    episodes = make_episodes(agents, actions, {"team": rewards})
    value([turn for episode in episodes for turn in episode.turns], rewards.mean())
    return episodes


def with_clip(happo: type[Happo], clip: float) -> Happo:
    """HAPPO as in the game; a ratio is never 0, so that clip_low .999999 is as good as 1."""
    return happo(
        clip_low=min(clip, 0.999999), clip_high=clip, epochs=NUM_STEPS, whiten=False, clamp=False
    )


def compare_orders(happo: type[Happo], *, seed: int) -> Doubles:
    """J after both agents' updates, at once and one after the other, at each clip: [clips, 2].

    Samples, and what credit they get, are the same at all clips.
    """
    episodes, start = sample(seed=seed), with_clip(happo, 0.2)
    start.credit(episodes)
    first, second = AGENTS if seed % 2 == 0 else AGENTS[::-1]
    turns = {agent: agent_turns(episodes, agent) for agent in AGENTS}
    batches = {agent: prepare_batches(team()[agent], turns[agent], start) for agent in AGENTS}
    results = np.zeros((len(KNOWN), 2))
    for row, clip in enumerate(KNOWN):
        algorithm, agents = with_clip(happo, clip), team()
        for agent in AGENTS:
            descend(agents[agent], batches[agent], algorithm, lr=LEARNING_RATE)
        results[row, 0] = expected_payoff(agents)
        tell(algorithm, agents[first], episodes, agent=first)
        agents[second] = team()[second]
        update(agents[second], turns[second], algorithm, lr=LEARNING_RATE)
        results[row, 1] = expected_payoff(agents)
    return results


def exact_claims(happo: type[Happo]) -> Iterator[Claim]:
    """Yield claims on one best response each, over every episode."""
    before = expected_payoff(team())
    yield Claim("Matrix game: J before any update.", "0.75", f"{before:.4f}", _near(before, 0.75))
    options = {"whiten": False}
    for name, algorithm, expected_values, expected in (
        ("simultaneous (MAPPO)", Mappo(**options), [0.6, 1.1], -1.0),
        ("sequential (HAPPO)", happo(**options, clamp=False), [2.0, -1.0], 2.0),
    ):
        for order in (AGENTS, AGENTS[::-1]):
            values, payoff = best_responses(algorithm, order)
            shown = [round(x, 4) for x in values[1].tolist()]
            yield Claim(
                f"Matrix game, {name} best responses, {order[0]} agent first: action values of "
                "the other agent, and J after both.",
                f"{expected_values} and {expected:g}",
                f"{shown} and {payoff:.4f}",
                all(_near(a, b) for a, b in zip(values[1], expected_values, strict=True))
                and _near(payoff, expected),
            )


def sampled_claims(happo: type[Happo], *, num_seeds: int = NUM_SEEDS) -> Iterator[Claim]:
    """Yield claims on 200 SGD steps each, at three clips."""
    results = np.stack([compare_orders(happo, seed=seed) for seed in range(num_seeds)], axis=-1)
    for (clip, expected), (at_once, in_turn) in zip(KNOWN.items(), results, strict=True):
        if clip == 0.2:
            what, ok = f"at most {SAME} apart", bool(np.abs(in_turn - at_once).max() <= SAME)
        else:
            what, ok = "every HAPPO seed higher", bool(in_turn.min() > at_once.max())
        yield Claim(
            f"Matrix game, {NUM_EPISODES} samples, {NUM_STEPS} steps, clip {clip}: J after "
            f"simultaneous and after sequential updates (HAPPO), {num_seeds} seeds.",
            f"{expected}; {what}",
            f"{_range(at_once)} and {_range(in_turn)}",
            ok,
        )


def claims(happo: type[Happo] = Happo) -> Iterator[Claim]:
    """Yield exact and sampled claims; another `happo` shows what the claims are worth."""
    yield from exact_claims(happo)
    yield from sampled_claims(happo)


def _near(value: float, expected: float) -> bool:
    return abs(value - expected) < 1e-6


def _range(values: Doubles) -> str:
    return f"{values.min():.3f} to {values.max():.3f}"
