"""Reads the strategies of a run's agents in a game, and how much can be won of them.

Consumes a built and restored run of `self_play` in a game of two seats that lists its deals. An
agent that answers with a bare action is read exactly, from the log-probs of those answers; of any
other agent the moves at every view are sampled.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from rolecall.agents import chat_template
from rolecall.agents.agent import Agent
from rolecall.agents.written_turn import write_ids, write_turn
from rolecall.config.evaluation import EvaluationConfig
from rolecall.core.interfaces.environment import World
from rolecall.core.types import Episode, Task, Turn
from rolecall.environments.games.environment import Game, GameEnvironment, GameWorld
from rolecall.environments.games.exploitability import (
    Strategy,
    action_frequencies,
    collect_views,
    exploitability,
)
from rolecall.rollout.episodes import PlaySettings, RolloutContext
from rolecall.rollout.evaluation import EvaluationOutputs, evaluate

BARE = 0.9  # least probability of a bare action, at every view, of an agent that is read exactly
NUM_SAMPLES = 32  # moves at each view of an agent that is not


@dataclass(frozen=True, slots=True)
class Reading:
    """The strategy of an agent, and how it was read."""

    strategy: Strategy
    bare: float | None  # least probability of a bare action; None where it cannot be computed
    samples: int = 0  # moves at each view; 0: the probabilities are exact


@dataclass(frozen=True, slots=True)
class Exploitability:
    """Says what perfect opponents win of an agent, or of a team whose agents keep their seats."""

    agent: str
    exploitability: float  # chips a game, averaged over the seats
    samples: int
    bare: float | None


def list_deals(context: RolloutContext) -> list[Game]:
    """Return the deals of the game that is played; nothing where exploitability is not defined."""
    environment = context.environment
    if context.workflow.name != "self_play" or not isinstance(environment, GameEnvironment):
        return []
    return environment.deals()


async def measure_exploitability(
    context: RolloutContext, options: EvaluationConfig
) -> list[Exploitability]:
    """Measure each trainable agent that plays both seats; a team, where each agent has its own.

    Agents with `memory` are read as if their view was the first of the game.
    """
    deals = list_deals(context)
    context = context.with_settings(PlaySettings(tries_out=False, sampling=options.sampled_with))
    players = [name for name, agent in context.agents.items() if agent.role == "player"]
    views = collect_views(deals)
    if context.options.get("swap_seats"):
        readings = {
            name: await read_strategy(context, name, views)
            for name in players
            if context.agents[name].trainable
        }
        return [_measure(name, [reading, reading], deals) for name, reading in readings.items()]
    seats = [
        await read_strategy(
            context, name, {view: game for view, game in views.items() if game.to_move == seat}
        )
        for seat, name in enumerate(players)
    ]
    return [_measure("team", seats, deals)]


def _measure(agent: str, readings: list[Reading], deals: list[Game]) -> Exploitability:
    bare = [reading.bare for reading in readings]
    return Exploitability(
        agent,
        exploitability(deals, [reading.strategy for reading in readings]),
        max(reading.samples for reading in readings),
        None if None in bare else min(share for share in bare if share is not None),
    )


async def read_strategy(context: RolloutContext, name: str, views: Mapping[str, Game]) -> Reading:
    """Read how likely an agent takes each action at each of the views."""
    agent, bare = context.agents[name], None
    if _is_scored(agent):
        shares = {view: await _score_actions(agent, game) for view, game in views.items()}
        bare = min(sum(chances.values()) for chances in shares.values())
        if bare >= BARE:
            return Reading({view: _normalise(chances) for view, chances in shares.items()}, bare)
    return Reading(await _sample_moves(context, agent, views), bare, NUM_SAMPLES)


def _is_scored(agent: Agent) -> bool:
    """Return whether the engine can say how likely the agent gives an answer."""
    policy, sampling = agent.policy, agent.sampling
    at_temperature = sampling.temperature == 1.0 or "score_at_temperature" in policy.engine.can
    return (
        policy.tokenizer is not None
        and agent.tools is None
        and not sampling.is_filtered
        and at_temperature
    )


async def _score_actions(agent: Agent, game: Game) -> dict[str, float]:
    """Return the probability that the agent answers with an action in brackets and nothing else.

    What is missing to 1 are all other answers.
    """
    policy, seat = agent.policy, game.to_move
    tokenizer = policy.tokenizer
    assert tokenizer is not None
    assert seat is not None
    world = GameWorld(game)
    await world.seat_agents([agent.name if index == seat else "" for index in range(game.seats)])
    messages = agent.messages((game.rules, world.view(agent.name)), earlier=[])
    prompt = chat_template.prompt_ids(tokenizer, messages, options=policy.template)
    chances = {}
    for action in game.legal():
        written = write_turn(tokenizer, messages, f"[{action}]", options=policy.template)
        logprobs = await policy.engine.score(
            policy.name,
            prompt,
            write_ids(tokenizer, prompt, written),
            temperature=agent.sampling.temperature,
        )
        chances[action] = math.exp(float(logprobs.sum()))
    return chances


def _normalise(chances: dict[str, float]) -> dict[str, float]:
    total = sum(chances.values())
    return {action: chance / total for action, chance in chances.items()}


async def _sample_moves(
    context: RolloutContext, agent: Agent, views: Mapping[str, Game]
) -> Strategy:
    """Return the frequencies of the agent's actions, where it plays each view several times."""
    members = {name: replace(agent, name=name) for name in context.agents}
    moves = _Moves()
    environment = _Views(views)
    await evaluate(
        replace(context, agents=members, environment=environment, rewards={}, player=None),
        environment.tasks("test"),
        EvaluationConfig(samples=NUM_SAMPLES),
        around=EvaluationOutputs(sink=moves),
    )
    return action_frequencies(moves.turns)


class _Moves:
    """Keeps the turns of episodes."""

    def __init__(self) -> None:
        self.turns: list[Turn] = []

    def write(self, episodes: list[Episode]) -> None:
        self.turns += [turn for episode in episodes for turn in episode.turns]


class _Views:
    """An environment whose tasks are views of a game, each over after one move."""

    def __init__(self, views: Mapping[str, Game]) -> None:
        self.views = views

    def tasks(self, split: str) -> list[Task]:
        return [Task(view, game.rules) for view, game in self.views.items()]

    def open(self, task: Task, *, seed: int) -> World:
        return GameWorld(_OneMove(self.views[task.id]))


class _OneMove:
    """Plays one move of a game under way, which stays as it is."""

    def __init__(self, game: Game) -> None:
        self.rules, self.seats = game.rules, game.seats
        self.to_move, self.view, self.legal = game.to_move, game.view, game.legal

    def play(self, action: str) -> None:
        self.to_move = None

    def forfeit(self, seat: int) -> None:
        self.to_move = None

    def payoffs(self) -> list[float]:
        return [0.0] * self.seats
