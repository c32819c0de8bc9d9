"""Measures how well each algorithm's advantages follow the exact ones of a game of two agents.

A writer says one of three words, a reader hears it and says one of three; each pair pays a number,
and each task adds an offset of its own that neither of them knows. Every Q and V is a finite sum.
Critics, where an algorithm has one, say the exact values, so what is measured is the rule that
makes advantages of them.

    python -m rolecall_lab.proofs.fidelity

prints the table of `docs/results.md`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from statistics import fmean

import numpy as np

from rolecall.algorithms.a2c import A2c
from rolecall.algorithms.agentrl import AgentRl
from rolecall.algorithms.at_grpo import AtGrpo
from rolecall.algorithms.base import Algorithm
from rolecall.algorithms.cory import Cory
from rolecall.algorithms.counterfactual import Counterfactual
from rolecall.algorithms.dapo import Dapo
from rolecall.algorithms.dpo import Dpo
from rolecall.algorithms.dr_grpo import DrGrpo
from rolecall.algorithms.drmas import DrMas
from rolecall.algorithms.gigpo import Gigpo
from rolecall.algorithms.grpo import Grpo
from rolecall.algorithms.happo import Happo
from rolecall.algorithms.leader_only import LeaderOnly
from rolecall.algorithms.maporl import Maporl
from rolecall.algorithms.mappo import Mappo
from rolecall.algorithms.marft import Marft
from rolecall.algorithms.marft_token import MarftToken
from rolecall.algorithms.matpo import Matpo
from rolecall.algorithms.mgrpo import MGrpo
from rolecall.algorithms.mixing import Qmix, Vdn
from rolecall.algorithms.ppo import Ppo
from rolecall.algorithms.reinforce import ReinforcePlusPlus, ReinforcePlusPlusBaseline
from rolecall.algorithms.reinforce_baseline import ReinforceBaseline
from rolecall.algorithms.rloo import Rloo
from rolecall.algorithms.sft import Sft
from rolecall.core.types import Episode, Utility
from rolecall_lab.proofs import Claim
from rolecall_lab.proofs.tabular import Doubles, Ints, Table, agent_turns, make_episodes

AGENTS = ("writer", "reader")
PAYOFF = np.array([[1.0, 0.0, 0.2], [0.0, 0.8, 0.4], [0.5, 0.1, 0.0]])  # [writer, reader]
WRITER = np.array([0.5, 0.3, 0.2])
READER = np.array([[0.6, 0.3, 0.1], [0.2, 0.5, 0.3], [0.3, 0.3, 0.4]])  # [heard, said]
NUM_TASKS, ATTEMPTS, NUM_SEEDS = 64, 8, 5
SPREAD = 0.5  # of the tasks' offsets
AFTER_WRITER = (READER * PAYOFF).sum(1)  # Q of each word of the writer
EXPECTED = float(WRITER @ AFTER_WRITER)  # V before it


@dataclass(frozen=True, slots=True)
class Step:
    """A step of the game: [N] of each, the exact advantages by agent."""

    episodes: list[Episode]
    actions: Ints  # [N, 2]
    offsets: Doubles
    exact: dict[str, Doubles]


@dataclass(frozen=True, slots=True)
class Fidelity:
    """The measures of an agent's advantages beside the exact ones."""

    rank: float  # Spearman's correlation
    noise: float  # variance that the exact ones do not explain, in units of what they do
    influence: float  # share of all squared advantages that are the agent's


def play_step(seed: int) -> Step:
    """Play every task `ATTEMPTS` times, and note what the exact critics say."""
    random = np.random.default_rng(seed)
    team = {"writer": Table([WRITER.tolist()]), "reader": Table(READER.tolist())}
    number = NUM_TASKS * ATTEMPTS
    offsets = np.repeat(random.normal(0, SPREAD, NUM_TASKS), ATTEMPTS)
    words = team["writer"].sample(np.zeros(number, dtype=np.int32), random)
    answers = team["reader"].sample(words, random)
    paid = PAYOFF[words, answers] + offsets
    states = np.stack([np.zeros(number, dtype=np.int32), words], axis=1)
    actions = np.stack([words, answers], axis=1)
    episodes = make_episodes(
        team, actions, {"team": paid}, states=states, attempts=ATTEMPTS, in_turn=True
    )
    before = {"writer": EXPECTED + offsets, "reader": AFTER_WRITER[words] + offsets}
    after = {"writer": AFTER_WRITER[words] + offsets, "reader": paid}
    for agent in AGENTS:
        for turn, v, q in zip(
            agent_turns(episodes, agent), before[agent], after[agent], strict=True
        ):
            turn.training.values = np.full(1, v, dtype=np.float32)
            turn.training.utility = Utility(q, v, gain=q - v, mixed_q=q, mixed_v=v)
            turn.state = str(turn.ids[0][-1])
            turn.training.ref_logprobs = turn.logprobs  # so that no KL is taken from the reward
    exact = {agent: after[agent] - before[agent] for agent in AGENTS}
    return Step(episodes, actions, offsets, exact)


def replay_turns(step: Step, replays: int, *, seed: int) -> None:
    """Note on each turn what replays earned in which it was sampled anew."""
    random = np.random.default_rng([seed, 1])
    for episode, actions, offset in zip(step.episodes, step.actions, step.offsets, strict=True):
        for turn in episode.turns:
            returns = []
            for _ in range(replays):
                word = int(actions[0])
                if turn.agent == "writer":
                    word = int(random.choice(3, p=WRITER))
                returns.append(PAYOFF[word, int(random.choice(3, p=READER[word]))] + offset)
            turn.training.replayed = fmean(returns)


def pay_turns(step: Step) -> None:
    """Pay each turn the team's outcome, for algorithms that look at what turns earn themselves."""
    for episode in step.episodes:
        for turn in episode.turns:
            turn.world_rewards = {"outcome": episode.rewards["team"]}


Prepare = Callable[[Step, int], None]
ALGORITHMS: dict[str, tuple[Algorithm, Prepare | None]] = {
    "grpo": (Grpo(), None),
    "drmas": (DrMas(), None),
    "dr_grpo": (DrGrpo(turn_length=1), None),
    "dapo": (Dapo(longest=2), None),
    "matpo": (Matpo(), None),
    "agentrl": (AgentRl(), None),
    "rloo": (Rloo(), None),
    "mgrpo": (MGrpo(), None),
    "gigpo": (Gigpo(), None),
    "reinforce_pp": (ReinforcePlusPlus(), None),
    "reinforce_pp_baseline": (ReinforcePlusPlusBaseline(), None),
    "reinforce_baseline": (ReinforceBaseline(), None),
    "at_grpo": (AtGrpo(), lambda step, seed: pay_turns(step)),
    "leader_only": (LeaderOnly(turn_length=1), lambda step, seed: pay_turns(step)),
    "counterfactual, 1 replay": (Counterfactual(), lambda s, seed: replay_turns(s, 1, seed=seed)),
    "counterfactual, 16 replays": (
        Counterfactual(replays=16),
        lambda s, seed: replay_turns(s, 16, seed=seed),
    ),
    "ppo": (Ppo(), None),
    "a2c": (A2c(), None),
    "cory": (Cory(), None),
    "maporl": (Maporl(), None),
    "marft_token": (MarftToken(), None),
    "mappo": (Mappo(), None),
    "mappo, lam 0": (Mappo(lam=0.0), None),
    "happo": (Happo(), None),
    "marft": (Marft(), None),
    "vdn": (Vdn(), None),
    "qmix": (Qmix(), None),
    "dpo": (Dpo(), None),
    "sft": (Sft(), None),
}


def measure(name: str, seed: int) -> dict[str, Fidelity]:
    """Return how an algorithm's advantages follow the exact ones, by agent, in one step."""
    algorithm, prepare = ALGORITHMS[name]
    step = play_step(seed)
    if prepare is not None:
        prepare(step, seed)
    algorithm.credit(step.episodes)
    advantages = {agent: _advantages(step.episodes, agent) for agent in AGENTS}
    power = {agent: float(np.mean(values**2)) for agent, values in advantages.items()}
    whole = sum(power.values())
    return {
        agent: Fidelity(
            rank=_correlate(_ranks(advantages[agent]), _ranks(step.exact[agent])),
            noise=_noise(_correlate(advantages[agent], step.exact[agent])),
            influence=power[agent] / whole if whole else 0.0,
        )
        for agent in AGENTS
    }


@cache
def average(name: str) -> dict[str, Fidelity]:
    """Return the means over seeds."""
    measured = [measure(name, seed) for seed in range(NUM_SEEDS)]
    return {
        agent: Fidelity(
            rank=fmean(one[agent].rank for one in measured),
            noise=fmean(one[agent].noise for one in measured),
            influence=fmean(one[agent].influence for one in measured),
        )
        for agent in AGENTS
    }


def exact_influence() -> float:
    """Return the writer's share of the squared exact advantages."""
    writer = float(WRITER @ (AFTER_WRITER - EXPECTED) ** 2)
    reader = float(WRITER @ (READER * (PAYOFF - AFTER_WRITER[:, None]) ** 2).sum(1))
    return writer / (writer + reader)


def claims() -> Iterator[Claim]:
    """Yield what the game says of the rules of credit."""
    what = f"{NUM_TASKS} tasks x {ATTEMPTS} attempts of a game of two agents, {NUM_SEEDS} seeds"
    perfect = average("mappo, lam 0")
    ranks = [perfect[agent].rank for agent in AGENTS]
    yield Claim(
        f"MAPPO with lam 0 and an exact critic; {what}: rank correlation with the exact ones.",
        "1 for both agents",
        ", ".join(f"{rank:.3f}" for rank in ranks),
        min(ranks) > 0.999,
    )
    one, many, loo = (
        average(name)["writer"].rank
        for name in ("counterfactual, 1 replay", "counterfactual, 16 replays", "rloo")
    )
    yield Claim(
        "The writer's advantages by replays: 16 replays of each turn, and one.",
        "16 follow the exact ones better than one",
        f"{many:.3f}, {one:.3f}",
        many > one,
    )
    group, plain = average("grpo")["reader"].rank, average("reinforce_pp")["reader"].rank
    yield Claim(
        "The reader's by GRPO and by REINFORCE++, where tasks have offsets of their own.",
        "a group's mean knows the task's offset, a step's mean does not",
        f"{group:.3f}, {plain:.3f}",
        group > plain + 0.1,
    )
    token = average("ppo")["reader"].rank
    yield Claim(
        "The reader's by PPO with exact values, and by RLOO.",
        "a critic that knows what was heard follows them better than the other attempts",
        f"{token:.3f}, {average('rloo')['reader'].rank:.3f}",
        token > average("rloo")["reader"].rank and loo > 0,
    )
    drmas, exact = average("drmas")["writer"].influence, exact_influence()
    yield Claim(
        "The writer's share of all squared advantages under Dr. MAS: each agent has E[A^2] 1.",
        f".5, where the exact share is {exact:.3f}",
        f"{drmas:.3f}",
        abs(drmas - 0.5) < 0.02 and exact < 0.4,
    )


def table() -> str:
    """Return the measurements as a table in Markdown."""
    lines = [
        "| algorithm | writer: rank | noise | reader: rank | noise | writer's share |",
        "|---|---|---|---|---|---|",
        f"| exact | 1 | 0 | 1 | 0 | {exact_influence():.2f} |",
    ]
    for name in ALGORITHMS:
        writer, reader = (average(name)[agent] for agent in AGENTS)
        lines.append(
            f"| `{name}` | {writer.rank:.2f} | {_show(writer.noise)} | {reader.rank:.2f} | "
            f"{_show(reader.noise)} | {writer.influence:.2f} |"
        )
    return "\n".join(lines)


def _show(noise: float) -> str:
    return f"{noise:.1f}" if noise < 100 else "> 100"


def _advantages(episodes: list[Episode], agent: str) -> Doubles:
    turns = agent_turns(episodes, agent)
    return np.array([0.0 if t.advantages is None else float(t.advantages[0]) for t in turns])


def _ranks(values: Doubles) -> Doubles:
    """Return the ranks of values; equal ones share the mean of theirs."""
    _, inverse, counts = np.unique(values.round(4), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks: Doubles = (last - (counts - 1) / 2)[inverse]
    return ranks


def _correlate(a: Doubles, b: Doubles) -> float:
    return float(np.corrcoef(a, b)[0, 1]) if a.std() and b.std() else 0.0


def _noise(correlation: float) -> float:
    square = correlation**2
    return (1 - square) / square if square else float("inf")


if __name__ == "__main__":
    print(table())
