"""Plays two random cooks with and without the refinement of ReAd (2405.14314).

The critic is exact: it expects what random cooks come to serve from here, by dynamic programming.
So the team's score without refinement, and with it, is known, and play must come to both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from random import Random

import numpy as np

from rolecall.agents.agent import Agent, Policy
from rolecall.algorithms.read import ReAd, Refiner
from rolecall.core.interfaces.engine import Sampling
from rolecall.core.seeding import derive_seed
from rolecall.core.types import Episode, Task, Turn
from rolecall.engines.scripted import ScriptedEngine
from rolecall.environments.kitchen.environment import (
    KitchenEnvironment,
    read_action,
    read_kitchen,
)
from rolecall.environments.kitchen.rules import ACTIONS, Kitchen, most_soups, play_step
from rolecall.rollout.episodes import RolloutContext, play
from rolecall.workflows.in_turn import in_turn
from rolecall_lab.proofs import Claim
from rolecall_lab.proofs.matrix_game import AGENTS, PAYOFF, P, payoffs, team
from rolecall_lab.proofs.tabular import make_episodes
from rolecall_lab.tiny.tokenizer import fit

NUM_KITCHENS = 200
COOKS = ("cook_1", "cook_2")
ROUNDING = 1e-9  # how far an advantage that is 0 may be from it
REFINES = 3


@dataclass(frozen=True, slots=True)
class Cooks:
    """Two cooks who choose at random, and how often a proposal that adds too little is refused."""

    max_refine: int = 0

    def expect(self, kitchen: Kitchen) -> float:
        """Return the soups that they serve from here on average."""
        return _expect(self, kitchen) if kitchen.steps else 0.0

    def expect_after(self, kitchen: Kitchen, heard: str) -> float:
        """Return the same once cook 1 has chosen."""
        after = [_expect_step(self, kitchen, heard, own) for own in ACTIONS]
        return float(np.dot(self.choices(kitchen, heard), after))

    def choices(self, kitchen: Kitchen, heard: str | None) -> list[float]:
        """Return the probability of each action, which the refinement changes.

        An action that adds something is played when it is proposed, another one as the last of
        `max_refine` + 1 proposals alone.
        """
        share = 1 / len(ACTIONS)
        if self.max_refine == 0:
            return [share] * len(ACTIONS)
        is_good = [advantage(kitchen, heard, own) >= -ROUNDING for own in ACTIONS]
        refused = 1 - share * sum(is_good)
        last = refused**self.max_refine
        tries = sum(refused**n for n in range(self.max_refine)) + last
        return [share * (tries if good else last) for good in is_good]


UNREFINED = Cooks()


@cache
def _expect(cooks: Cooks, kitchen: Kitchen) -> float:
    after = [cooks.expect_after(kitchen, first) for first in ACTIONS]
    return float(np.dot(cooks.choices(kitchen, None), after))


@cache
def _expect_step(cooks: Cooks, kitchen: Kitchen, first: str, second: str) -> float:
    after, served, _ = play_step(kitchen, (first, second))
    return served + cooks.expect(after)


def values(kitchen: Kitchen, heard: str | None, own: str) -> tuple[float, float]:
    """Return the soups that random cooks serve from here, before and after an action."""
    if heard is None:
        return UNREFINED.expect(kitchen), UNREFINED.expect_after(kitchen, own)
    before = UNREFINED.expect_after(kitchen, heard)
    return before, _expect_step(UNREFINED, kitchen, heard, own)


def advantage(kitchen: Kitchen, heard: str | None, own: str) -> float:
    """Return what an action adds, where random cooks play on."""
    before, after = values(kitchen, heard, own)
    return after - before


class ExactCritic:
    """Expects the score of random cooks: soups served and to come, as a share of the most."""

    async def before_and_after(self, turn: Turn, episode: Episode) -> tuple[float, float]:
        played = [t for t in episode.turns if t.chosen and t is not turn]
        kitchen, served, heard = _replay(episode.task, [read_action(t.text) for t in played])
        before, after = values(kitchen, heard, read_action(turn.text))
        most = most_soups(read_kitchen(episode.task.info))
        return (served + before) / most, (served + after) / most

    def learn(
        self, episodes: list[Episode], returns: list[float], *, epochs: int
    ) -> dict[str, float]:
        return {}


def _replay(task: Task, actions: list[str]) -> tuple[Kitchen, int, str | None]:
    """Return the kitchen after these actions, what was served, and what cook 1 has chosen."""
    kitchen, served = read_kitchen(task.info), 0
    for first, second in zip(actions[::2], actions[1::2], strict=False):
        kitchen, more, _ = play_step(kitchen, (first, second))
        served += more
    return kitchen, served, actions[-1] if len(actions) % 2 else None


def play_kitchens(judge: Refiner, *, seed: int) -> list[Episode]:
    """Play each kitchen once through the workflow, with proposals that are drawn at random."""
    random = Random(derive_seed("cooks", seed))
    tokenizer = fit([], size=300, tags=())
    engine = ScriptedEngine(tokenizer, lambda request: f"[{random.choice(ACTIONS)}]")
    agents = {
        name: Agent(name, Policy(name, tokenizer, engine), "player", judge=judge,
                    sampling=Sampling(max_tokens=64))
        for name in COOKS
    }  # fmt: skip
    context = RolloutContext(
        agents=agents, workflow=in_turn, options={}, environment=kitchens(), rewards={}
    )

    async def everyone() -> list[Episode]:
        return [await play(context, task) for task in tasks()]

    return asyncio.run(everyone())


def kitchens() -> KitchenEnvironment:
    return KitchenEnvironment(onions=2, time=0, min_steps=6, max_steps=8)


def tasks() -> list[Task]:
    return list(kitchens().tasks("train")[:NUM_KITCHENS])


def expected_scores(cooks: Cooks) -> list[float]:
    """Return the exact expected score of each kitchen."""
    starts = [read_kitchen(task.info) for task in tasks()]
    return [cooks.expect(start) / most_soups(start) for start in starts]


class MatrixCritic:
    """Expects the payoff of the matrix game after each speaker, where both play 1 with .3."""

    async def before_and_after(self, turn: Turn, episode: Episode) -> tuple[float, float]:
        own, other = int(turn.ids[1][0]), np.array(P)
        if turn.agent == AGENTS[0]:
            return float(other @ PAYOFF @ other), float(PAYOFF[own] @ other)
        heard = int(episode.turns[0].ids[1][0])
        return float(PAYOFF[heard] @ other), float(PAYOFF[heard, own])

    def learn(
        self, episodes: list[Episode], returns: list[float], *, epochs: int
    ) -> dict[str, float]:
        return {}


def matrix_gains(refiner: type[Refiner]) -> tuple[list[float], list[float]]:
    """Return what each speaker adds where both play 1, and the weights of their turns."""
    actions = np.array([[1, 1]], dtype=np.int32)
    [episode] = make_episodes(team(), actions, {"team": payoffs(actions)})
    algorithm = ReAd(train=True, beta=0.5)
    for turn in episode.turns:
        asyncio.run(refiner(algorithm, MatrixCritic())(turn, episode))
    algorithm.credit([episode])
    advantages = [turn.advantages for turn in episode.turns]
    weights = [float(one[0]) for one in advantages if one is not None]
    return [turn.training.estimate or 0.0 for turn in episode.turns], weights


def claims(refiner: type[Refiner] = Refiner) -> Iterator[Claim]:
    """Yield the claims; another `refiner` shows what they are worth."""
    (one, two), weights = matrix_gains(refiner)
    yield Claim(
        "Matrix game, both play 1: A_1, A_2 and their sum, which is the payoff less the value, and "
        "the weights of the turns at beta .5.",
        "0.35, -2.1 and -1.75; 2.013753 and 0.014996",
        f"{one:.4g}, {two:.4g} and {one + two:.4g}; "
        + " and ".join(f"{weight:.6f}" for weight in weights),
        bool(np.allclose([one, two, one + two], [0.35, -2.1, -1.0 - 0.75]))
        and bool(np.allclose(weights, [2.013753, 0.014996], atol=1e-6)),
    )
    scores: dict[int, np.ndarray] = {}
    for refines in (0, REFINES):
        judge = refiner(ReAd(epsilon=-ROUNDING, max_refine=refines), ExactCritic())
        episodes = play_kitchens(judge, seed=refines)
        exact = float(np.mean(expected_scores(Cooks(refines))))
        played = scores[refines] = np.array([score(e) for e in episodes])
        error = float(played.std() / np.sqrt(len(played)))
        yield Claim(
            f"Kitchen, random cooks, {len(played)} episodes with at most {refines} refinements: "
            "mean score.",
            f"{exact:.3f}, +- three standard errors ({3 * error:.3f})",
            f"{played.mean():.3f}",
            bool(abs(played.mean() - exact) <= 3 * error),
        )
    worst = max(abs(_telescoped(episode)) for episode in episodes)
    yield Claim(
        "Kitchen: the advantages of an episode add up to its score less what was expected at "
        "first; largest difference.",
        "0",
        f"{worst:.1e}",
        worst < 1e-9,
    )
    margin = 3 * float(np.sqrt(sum(s.var() / len(s) for s in scores.values())))
    gain = float(scores[REFINES].mean() - scores[0].mean())
    yield Claim(
        "Kitchen: what the refinement adds to the score of the same cooks.",
        f"more than three standard errors ({margin:.3f})",
        f"{gain:.3f}",
        gain > margin,
    )


def score(episode: Episode) -> float:
    """Return the soups that were served, as a share of the most that could have been."""
    assert episode.team_score is not None, episode.error
    return episode.team_score


def _telescoped(episode: Episode) -> float:
    """Return how far the advantages of played turns are from adding up."""
    start = read_kitchen(episode.task.info)
    first = UNREFINED.expect(start) / most_soups(start)
    critic = ExactCritic()
    played, total = [turn for turn in episode.turns if turn.chosen], 0.0
    for number, turn in enumerate(played):
        so_far = Episode(episode.id, episode.task, 0, 0, played[:number])
        before, after = asyncio.run(critic.before_and_after(turn, so_far))
        total += after - before
    return total - (score(episode) - first)
