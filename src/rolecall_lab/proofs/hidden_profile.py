"""Measures whether a team decides rightly where each agent knows a fact that the others do not.

There are three options. Everybody knows three facts for one of them, the popular one, and one fact
for each other; each of four agents knows one more. The right option has most facts of all. In a
hidden profile it is not the popular one (Stasser and Titus 1985; for language models 2505.11556):
three of the four facts that agents know alone speak for it, and the fourth may speak for the third
option, so no agent can see which option is right, and each by itself prefers the popular one.

All agents speak at once. One repeats what everybody knows, or says its own fact, and the team
decides for the option with most facts among those that were shared or said.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np
from numpy.typing import NDArray

from rolecall.algorithms.grpo import Grpo
from rolecall_lab.proofs import Claim
from rolecall_lab.proofs.tabular import Doubles, Ints, Table, agent_turns, make_episodes, update
from rolecall_lab.seeds import Mean, over_seeds

AGENTS = ("first", "second", "third", "fourth")
NUM_OPTIONS = 3
NUM_STATES = NUM_OPTIONS**2  # of an agent: which option is popular, and which one its fact is for
NUM_SHARED = 3  # facts for the popular option
SHARED, OWN = 0, 1  # what an agent may say
HABIT = 0.9  # P(a shared fact) at the start
NUM_STEPS, NUM_TASKS, ATTEMPTS, LR = 180, 12, 8, 8.0
NUM_SEEDS = 5


def count_facts(profiles: Ints, words: Ints) -> NDArray[np.int64]:
    """Return the facts for each option that were shared or said, [N, options].

    A profile [1 + agents] has the popular option and that of each agent's own fact; words
    [N, agents] are what the agents say.
    """
    rows = np.arange(len(profiles))
    facts = np.ones((len(profiles), NUM_OPTIONS), dtype=np.int64)
    facts[rows, profiles[:, 0]] = NUM_SHARED
    for agent in range(len(AGENTS)):
        facts[rows, profiles[:, 1 + agent]] += words[:, agent] == OWN
    return facts


def decide(profiles: Ints, words: Ints) -> Doubles:
    """Return how likely the team decides for each option, [N, options]; ties are tossed."""
    facts = count_facts(profiles, words)
    best = facts == facts.max(1, keepdims=True)
    return np.asarray(best / best.sum(1, keepdims=True))


def list_profiles() -> Ints:
    """Return all profiles of which one option has most facts, [N, 1 + agents]."""
    profiles = np.array([*product(range(NUM_OPTIONS), repeat=1 + len(AGENTS))], dtype=np.int32)
    everything = np.full((len(profiles), len(AGENTS)), OWN, dtype=np.int32)
    return profiles[decide(profiles, everything).max(1) == 1]


PROFILES = list_profiles()
POPULAR = PROFILES[:, 0]
RIGHT = count_facts(PROFILES, np.full((len(PROFILES), len(AGENTS)), OWN)).argmax(1)
HIDDEN = np.flatnonzero(RIGHT != POPULAR)
MANIFEST = np.flatnonzero(RIGHT == POPULAR)
STATES = POPULAR[:, None] * NUM_OPTIONS + PROFILES[:, 1:]


def compute_accuracy(team: list[Doubles]) -> float:
    """Return how often a team is right in hidden profiles, over all that it may say."""
    accuracy = 0.0
    for words in product((SHARED, OWN), repeat=len(AGENTS)):
        columns = zip(team, STATES[HIDDEN].T, words, strict=True)
        chances = np.prod([table[states, word] for table, states, word in columns], axis=0)
        options = decide(PROFILES[HIDDEN], np.tile(words, (len(HIDDEN), 1)))
        accuracy += float(np.mean(chances * options[np.arange(len(HIDDEN)), RIGHT[HIDDEN]]))
    return accuracy


def learn(pays: Ints, *, seed: int) -> list[Doubles]:
    """Train a team that is paid for deciding on option `pays[profile]`.

    Half of the profiles are hidden.
    """
    random = np.random.default_rng(seed)
    team = {agent: Table([[HABIT, 1 - HABIT]] * NUM_STATES) for agent in AGENTS}
    algorithm, half = Grpo(), NUM_TASKS // 2
    for _ in range(NUM_STEPS):
        tasks = np.concatenate([random.choice(HIDDEN, half), random.choice(MANIFEST, half)])
        numbers = np.repeat(tasks, ATTEMPTS)
        states = STATES[numbers].astype(np.int32)
        spoken = [t.sample(seen, random) for t, seen in zip(team.values(), states.T, strict=True)]
        words = np.stack(spoken, axis=1)
        below = np.cumsum(decide(PROFILES[numbers], words), axis=1)[:, :-1]
        options = (random.random((len(numbers), 1)) > below).sum(1)
        paid = {"team": (options == pays[numbers]).astype(np.float64)}
        episodes = make_episodes(team, words, paid, states=states, attempts=ATTEMPTS)
        algorithm.credit(episodes)
        for agent, table in team.items():
            update(table, agent_turns(episodes, agent), algorithm, lr=LR)
    return [table.probabilities() for table in team.values()]


def measure(pays: Ints) -> Mean:
    """Return the exact accuracy of trained teams in hidden profiles."""
    return over_seeds([compute_accuracy(learn(pays, seed=seed)) for seed in range(NUM_SEEDS)])


def say(shared: float) -> list[Doubles]:
    """Return a team whose agents repeat a shared fact with this probability."""
    return [np.tile([shared, 1 - shared], (NUM_STATES, 1))] * len(AGENTS)


def claims() -> Iterator[Claim]:
    """Yield how often teams are right that say one thing only, and that were trained."""
    what = f"Hidden profiles of {len(AGENTS)} agents: how often the team is right "
    pooled, shared = compute_accuracy(say(0.0)), compute_accuracy(say(1.0))
    yield Claim(
        what + "that says all it knows, and that says what everybody knows.",
        "1 and 0, exactly",
        f"{pooled:g} and {shared:g}",
        (pooled, shared) == (1.0, 0.0),
    )
    what += (
        f"after {NUM_STEPS} steps of {NUM_TASKS} tasks x {ATTEMPTS} by GRPO, {NUM_SEEDS} seeds, "
    )
    start = compute_accuracy(say(HABIT))
    right = measure(RIGHT.astype(np.int32))
    yield Claim(
        what + "paid for being right.",
        f"above .95, from {start:.4f}: agents learn to say what only they know",
        f"{right:.3f}",
        right.low > 0.95 and start < 0.05,
    )
    popular = measure(POPULAR)
    yield Claim(
        what + "paid for what everybody favoured.",
        f"below {start / 2:.4f}, half of that: agreement teaches to repeat what is shared",
        f"{popular:.4f}",
        popular.high < start / 2,
    )
