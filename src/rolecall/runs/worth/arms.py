"""Plays a team, its variants and single agents on the same tasks with the same seeds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from statistics import fmean

from rolecall.agents.agent import Agent
from rolecall.algorithms.best_of import task_key
from rolecall.config.evaluation import EvaluationConfig
from rolecall.config.schema import Config, Named
from rolecall.core.errors import ConfigError
from rolecall.core.interfaces.environment import Environment, World
from rolecall.core.types import Episode, Task, Turn
from rolecall.engines.prices import find_prices
from rolecall.engines.silent import SilentEngine
from rolecall.explain.worth import Arm, Attempt, Kind
from rolecall.rollout.costs import Taken
from rolecall.rollout.episodes import RolloutContext
from rolecall.rollout.evaluation import EvaluationOutputs, evaluate
from rolecall.runtime.progress import activity
from rolecall.runtime.spending import Prices
from rolecall.setup.plan import resolve_workflow

PROMPT_PRICE = 0.25  # of a prompt token, where a sampled one costs 1 and no prices are declared
UNDECLARED = Prices(prompt=PROMPT_PRICE * 1e6, completion=1e6)
LONE_WORKFLOW = "single"


@dataclass(slots=True)
class Arms:
    """The arms that could be played, and why others could not."""

    team: Arm
    others: list[Arm] = field(default_factory=list)
    not_possible: dict[str, str] = field(default_factory=dict)

    @contextmanager
    def attempt(self, name: str) -> Iterator[None]:
        """Note why an arm is not possible in place of raising."""
        try:
            yield
        except (ConfigError, RuntimeError, ValueError) as error:
            self.not_possible[name] = str(error)


@dataclass(slots=True)
class AttemptList:
    """Measures the episodes of an evaluation that could be scored, and forgets their turns."""

    prices: dict[str, Prices]
    by_task: dict[str, list[tuple[Episode, Attempt]]] = field(default_factory=dict)

    def write(self, episodes: list[Episode]) -> None:
        for episode in episodes:
            if episode.error is None:
                measured = replace(episode, turns=[]), measure_attempt(episode, self.prices)
                self.by_task.setdefault(task_key(episode), []).append(measured)


@dataclass(slots=True)
class ArmPlayer:
    """Plays arms on the test tasks of a run."""

    tasks: list[Task]
    options: EvaluationConfig
    prices: dict[str, Prices]  # of all policies, or of none
    answers: int  # attempts of a single agent at a task

    @classmethod
    def for_run(cls, config: Config, tasks: list[Task], *, answers: int) -> ArmPlayer:
        policies = {agent.policy for agent in config.team.values()}
        prices = find_prices(config) if policies <= config.prices.keys() else {}
        return cls(tasks, config.evaluation, prices, answers)

    async def play(self, name: str, context: RolloutContext, *, kind: Kind = "variant") -> Arm:
        """Return an arm. Raises RuntimeError where too many episodes failed to compare it."""
        samples = self.answers if kind == "single" else self.options.samples
        options = self.options.model_copy(update={"samples": samples})
        played = AttemptList(self.prices)
        with activity(f"playing {name}"):
            await evaluate(context, self.tasks, options, around=EvaluationOutputs(sink=played))
        groups: dict[str, list[Attempt]] = {}
        for task, pairs in played.by_task.items():
            groups[task] = [attempt for _, attempt in pairs]
            if kind == "single":
                numbers = await number_answers(context.environment, [one for one, _ in pairs])
                groups[task] = [
                    replace(attempt, answer=number)
                    for attempt, number in zip(groups[task], numbers, strict=True)
                ]
        if kind == "single":
            groups = {task: group for task, group in groups.items() if len(group) == samples}
        if not groups:
            raise RuntimeError(f"an episode of each task failed, of {samples} that it has")
        return Arm(name, kind, groups)


async def number_answers(environment: Environment, episodes: list[Episode]) -> list[int | None]:
    """Return a number for the answer of each attempt at one task; equal answers have equal ones.

    None stands for an attempt that states no answer.
    """
    world: World = environment.open(episodes[0].task, seed=0)
    try:
        classes: list[str] = []
        numbers: list[int | None] = []
        for episode in episodes:
            answer = None if episode.is_truncated else world.find_answer(episode.answer)
            numbers.append(None if answer is None else await _number(world, answer, classes))
        return numbers
    finally:
        await world.close()


async def _number(world: World, answer: str, classes: list[str]) -> int:
    for number, other in enumerate(classes):
        if answer == other or await world.equal(other, answer):
            return number
    classes.append(answer)
    return len(classes) - 1


def measure_attempt(episode: Episode, prices: dict[str, Prices]) -> Attempt:
    """Return the score and the spending of an episode."""
    sampled = prompt = 0
    own_price = shared_price = 0.0
    for number, turn in enumerate(episode.turns):
        usage = Taken()
        usage.add(turn)
        sampled += usage.completion_tokens
        prompt += usage.prompt_tokens
        price = prices.get(turn.policy, UNDECLARED)
        own_price += price.cost(replace(usage, prompt_tokens=0, cached_tokens=0))
        prompt_price = price.cost(replace(usage, completion_tokens=0))
        if number == 0:
            shared_price = prompt_price
        else:
            own_price += prompt_price
    logprobs = [turn.logprobs for turn in episode.turns if turn.logprobs is not None]
    values = [float(value) for one in logprobs for value in one]
    return Attempt(
        score=episode.headline or 0.0,
        sampled=sampled,
        prompt=prompt,
        serial=count_serial_tokens(episode.turns),
        own_price=own_price,
        shared_price=shared_price,
        likelihood=fmean(values) if values and len(logprobs) == len(episode.turns) else None,
    )


def count_serial_tokens(turns: Iterable[Turn]) -> int:
    """Return the sampled tokens of the longest chain of turns, each behind the one before.

    A turn stands behind those that it reads, behind earlier calls of its coroutine, and behind
    what the coroutines around it had awaited before they started it.
    """
    ends: dict[tuple[int, ...], int] = {}
    by_id: dict[str, int] = {}
    for turn in turns:
        usage = Taken()
        usage.add(turn)
        before = [end for path, end in ends.items() if _is_awaited(path, turn.call_path)]
        before += [by_id[name] for name in turn.parents if name in by_id]
        by_id[turn.id] = max(before, default=0) + usage.completion_tokens
        ends[turn.call_path] = max(ends.get(turn.call_path, 0), by_id[turn.id])
    return max(ends.values(), default=0)


def _is_awaited(path: tuple[int, ...], later: tuple[int, ...]) -> bool:
    """Return whether a call had ended before another began, as their paths say."""
    depth = min(len(path), len(later)) - 1
    return path[:depth] == later[:depth] and path[depth] < later[depth]


def silence(context: RolloutContext, names: Iterable[str]) -> RolloutContext:
    """Return the team in which these agents say nothing."""
    agents = dict(context.agents)
    for name in names:
        policy = replace(agents[name].policy, engine=SilentEngine())
        agents[name] = replace(agents[name], policy=policy, cross_policy=None)
    return replace(context, agents=agents)


def choose_lone_workflow(context: RolloutContext) -> str:
    """Return the workflow in which one agent works in this environment."""
    return getattr(context.environment, "lone_workflow", LONE_WORKFLOW)


def make_lone_context(context: RolloutContext, agent: Agent) -> RolloutContext:
    """Return the context in which one agent works on the tasks without a team.

    The team's rewards are left out: they may be of agents that are not there, and score nothing.
    """
    flow = resolve_workflow(Named(name=choose_lone_workflow(context)))
    lone = replace(agent, name=flow.roles[0], role=flow.roles[0], cross_policy=None)
    return replace(
        context, agents={lone.name: lone}, workflow=flow, options={}, rewards={}, counted_agent=None
    )
