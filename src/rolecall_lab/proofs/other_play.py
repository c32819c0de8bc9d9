"""Measures how strangers play the lever game after self-play, and after other-play (2003.02979).

Two agents pull one of ten levers at once; the same lever pays both, nine levers 1.0 and the odd one
.9. Nine levers are alike but for their labels, so strangers can agree on the odd one alone. Under
other-play the second agent's labels of the nine are shuffled in every game: a wrapper around the
game, and no algorithm.

Agents begin with preferences by chance and pull the odd lever with .16. Its return under other-play
is .9 p, of any other lever (1 - p) / 9, so below 1 / 9.1 = .11 the gradient leads away from it.
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean

import numpy as np

from rolecall.algorithms.rloo import Rloo
from rolecall_lab.proofs import Claim
from rolecall_lab.proofs.tabular import Doubles, Ints, Table, agent_turns, make_episodes, update
from rolecall_lab.seeds import Mean, over_seeds

AGENTS = ("first", "second")
PAYS = np.array([1.0] * 9 + [0.9])
NUM_ALIKE, ODD = 9, 9
START = 0.16  # P(the odd lever)
NUM_STEPS, NUM_GAMES, LR = 60, 128, 5.0
NUM_TEAMS, NUM_SEEDS = 5, 5


def make_agent(random: np.random.Generator) -> Table:
    """Return an agent that likes some of the equal levers better than others."""
    shares = np.exp(random.normal(size=NUM_ALIKE))
    alike = (1 - START) * shares / shares.sum()
    return Table([[*alike.tolist(), START]])


def shuffle_labels(levers: Ints, random: np.random.Generator) -> Ints:
    """Return the levers [N] that an agent pulls whose labels are shuffled in each game."""
    labels = random.permuted(np.tile(np.arange(NUM_ALIKE), (len(levers), 1)), axis=1)
    labels = np.hstack([labels, np.full((len(levers), 1), ODD)])
    return labels[np.arange(len(levers)), levers].astype(np.int32)


def learn(*, other_play: bool, random: np.random.Generator) -> list[Doubles]:
    """Train a team; return how likely each agent pulls each lever."""
    team = {agent: make_agent(random) for agent in AGENTS}
    nothing, algorithm = np.zeros(NUM_GAMES, dtype=np.int32), Rloo()
    for _ in range(NUM_STEPS):
        levers = [table.sample(nothing, random) for table in team.values()]
        pulled = shuffle_labels(levers[1], random) if other_play else levers[1]
        paid = PAYS[levers[0]] * (levers[0] == pulled)
        episodes = make_episodes(team, np.stack(levers, axis=1), {"team": paid})
        algorithm.credit(episodes)
        for agent, table in team.items():
            update(table, agent_turns(episodes, agent), algorithm, lr=LR)
    return [table.probabilities()[0] for table in team.values()]


def measure(*, other_play: bool) -> tuple[Mean, Mean]:
    """Return the exact payoffs of agents with their partners, and with those of other teams."""
    own, cross = [], []
    for seed in range(NUM_SEEDS):
        random = np.random.default_rng(seed)
        teams = [learn(other_play=other_play, random=random) for _ in range(NUM_TEAMS)]
        payoffs = np.array([[PAYS @ (one * two) for _, two in teams] for one, _ in teams])
        own.append(fmean(payoffs.diagonal()))
        cross.append(fmean(payoffs[~np.eye(NUM_TEAMS, dtype=bool)]))
    return over_seeds(own), over_seeds(cross)


def claims() -> Iterator[Claim]:
    """Yield what agents earn with their partners and with strangers, after both ways to train."""
    what = (
        f"Lever game, {NUM_STEPS} steps of {NUM_GAMES} games, {NUM_SEEDS} seeds of {NUM_TEAMS} "
        "teams: payoff with the partner, and with strangers, "
    )
    own, cross = measure(other_play=False)
    yield Claim(
        what + "after self-play.",
        "above .85, and below .3 (1/9 if every team picks one of the nine by chance)",
        f"{own:.3f} and {cross:.3f}",
        own.low > 0.85 and cross.high < 0.3,
    )
    own, cross = measure(other_play=True)
    yield Claim(
        what + "after other-play.",
        "above .85 both (at most .9: all pull the odd lever)",
        f"{own:.3f} and {cross:.3f}",
        own.low > 0.85 and cross.low > 0.85,
    )
