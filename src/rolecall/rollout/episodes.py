"""Plays one attempt at a task as a scored episode."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from rolecall.agents.agent import Agent
from rolecall.agents.team import Team
from rolecall.config.user_code_location import locate_error
from rolecall.core.errors import RunEndingError, first_error
from rolecall.core.interfaces.engine import ContextFullError
from rolecall.core.interfaces.environment import Environment, Observation, World
from rolecall.core.interfaces.follower import Follower, Follows
from rolecall.core.seeding import derive_seed
from rolecall.core.types import Episode, Group, Swap, Task, Turn
from rolecall.rollout.user_code import await_user, check_numbers, check_observation, check_text
from rolecall.rollout.user_worlds import is_scored_by_steps
from rolecall.runtime import call_tree
from rolecall.tools.use import OpenTools
from rolecall.workflows.base import Workflow

log = logging.getLogger("rolecall")
notices = logging.getLogger("rolecall.notices")
# Errors of the code itself: the same words would raise them again, and with other words the team
# would be trained on those episodes only that its code happens to bear.
MISTAKES = (
    ArithmeticError, AssertionError, AttributeError, LookupError, NameError, TypeError, ValueError,
)  # fmt: skip
Reward = Callable[[Episode, World], Awaitable[dict[str, float]]]


@dataclass(frozen=True, slots=True)
class Played:
    """An attempt at a task, and what went wrong with it before."""

    episode: Episode
    failed: list[Episode]  # played before it with other seeds, and itself where it failed too


class Player(Protocol):
    """Plays episodes in other processes."""

    async def start(self) -> None:
        """Wait until it can. Raises ConfigError where it lacks something."""
        ...

    async def play(
        self,
        task: Task,
        *,
        step: int | str,
        split: str,
        attempt: int,
        manner: PlaySettings,
        journal: Path | None,
    ) -> Played:
        """Play like `play_until_done`; the episode is in a part of the journal when it comes."""
        ...

    async def replay(self, episode: Episode, swap: Swap | None) -> Episode:
        """Replay an episode as the function `replay` does."""
        ...

    async def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class PlaySettings:
    """Holds the way in which agents are sampled."""

    tries_out: bool = True  # False: one candidate is drawn where a workflow asks for several
    sampling: Mapping[str, float] = field(default_factory=dict)  # instead of each agent's own


@dataclass(slots=True)
class RolloutContext:
    """Everything an episode is played with."""

    agents: dict[str, Agent]
    workflow: Workflow
    options: dict[str, Any]  # of the workflow
    environment: Environment
    rewards: dict[str, tuple[Reward, float]]  # name -> (function, weight)
    seed: int = 0  # of the run
    timeout_s: float = 600.0  # most seconds an episode may take
    retries: int = 2  # repeats of an episode that something outside of the code let down
    concurrency: int = 256  # episodes under way at once
    barrier: call_tree.IdleBarrier = field(default_factory=call_tree.IdleBarrier)
    manner: PlaySettings = PlaySettings()
    player: Player | None = None  # plays the episodes, which otherwise are played here
    told: set[str] = field(default_factory=set)  # kinds of errors that a person knows of
    counted_agent: str | None = None  # whose own score counts: `evaluation.agent`

    def with_settings(self, manner: PlaySettings) -> RolloutContext:
        agents = self.agents
        if manner.sampling:
            agents = {
                name: replace(a, sampling=a.sampling.model_copy(update=dict(manner.sampling)))
                for name, a in agents.items()
            }
        return replace(self, agents=agents, manner=manner)

    async def close(self) -> None:
        """End what the environment and the workflow have started, and who plays elsewhere."""
        async with AsyncExitStack() as stack:
            if self.workflow.close is not None:
                stack.push_async_callback(self.workflow.close)
            if hasattr(self.environment, "close"):
                stack.push_async_callback(self.environment.close)
            if self.player is not None:
                stack.push_async_callback(self.player.close)


@dataclass(slots=True)
class Rollout:
    """The groups that a step collected."""

    groups: list[Group]  # in the order of the tasks; within a group by attempt
    failures: Counter[str] = field(default_factory=Counter)  # error type -> how often
    first_error: str = ""
    num_dropped: int = 0  # groups left with too few episodes
    num_filtered: int = 0  # groups that the algorithm or rollout.group_filter left out
    num_stale: int = 0  # groups sampled by weights that were too old
    num_stale_turns: int = 0  # in the other groups, those too old for their own policy
    num_cut: int = 0  # attempts that a step did not wait for
    num_carried: int = 0  # groups of earlier steps
    unused: list[Episode] = field(default_factory=list)  # errored, or of a group left out

    @property
    def episodes(self) -> list[Episode]:
        return [episode for group in self.groups for episode in group]

    def drop_stale(self, versions: dict[str, int], *, most: int) -> None:
        """Leave out groups with tokens that were sampled more than `most` versions ago."""
        fresh = [group for group in self.groups if _staleness(group, versions) <= most]
        self.unused += [episode for group in self.groups if group not in fresh for episode in group]
        self.num_stale += len(self.groups) - len(fresh)
        self.groups = fresh

    def note(self, failed: Episode) -> None:
        """Count an attempt that something let down."""
        assert failed.error is not None
        self.failures[failed.error.partition(":")[0]] += 1
        self.first_error = self.first_error or failed.error

    def add(self, more: Rollout) -> None:
        """Take over the groups and counts of another round."""
        self.groups += more.groups
        self.failures += more.failures
        self.first_error = self.first_error or more.first_error
        self.num_dropped += more.num_dropped
        self.num_filtered += more.num_filtered
        self.num_cut += more.num_cut
        self.num_carried += more.num_carried
        self.unused += more.unused


async def play_until_done(
    context: RolloutContext, task: Task, *, step: int | str, split: str, attempt: int
) -> Played:
    """Play an episode, with a new seed where something outside of the code lets it down."""
    failed = []
    for retry in range(context.retries + 1):
        episode = await play(context, task, step=step, split=split, attempt=attempt, retry=retry)
        if episode.error is None:
            break
        failed.append(episode)
        if episode.is_mistake:
            break
    return Played(episode, failed)


async def play(
    context: RolloutContext,
    task: Task,
    *,
    step: int | str = 0,
    split: str = "train",
    attempt: int = 0,
    retry: int = 0,
) -> Episode:
    """One attempt. What user code raises is typed on the episode and never becomes a reward."""
    name = f"{step}:{task.id}:{attempt}" + (f":r{retry}" if retry else "")
    seed = derive_seed(context.seed, step, task.id, attempt, retry)
    episode = Episode(id=name, task=task, attempt=attempt, seed=seed, split=split)
    episode.step = step if isinstance(step, int) else None
    episode.counted_agent = context.counted_agent
    return await play_episode(context, episode)


async def replay(context: RolloutContext, episode: Episode, swap: Swap | None) -> Episode:
    """Return the episode that the same seeds give when one call says something else.

    Calls whose prompt is unchanged say what they said; the rest is sampled from the same seeds
    (common random numbers). Without a swap, and for one with a temperature, everything is sampled
    again. Nothing here is trained.
    """
    if context.player is not None:
        return await context.player.replay(episode, swap)
    if swap is not None and swap.temperature is not None:
        sampling = {**context.manner.sampling, "temperature": swap.temperature}
        context = context.with_settings(replace(context.manner, sampling=sampling))
        return await play_episode(context, _begin_again(episode, f"t{swap.temperature:g}"))
    again = _begin_again(episode, "" if swap is None else f"{swap.path}{swap.draw}")
    recorded = {} if swap is None else {turn.path: turn for turn in episode.turns}
    return await play_episode(context, again, swap=swap, recorded=recorded)


async def continue_episode(
    context: RolloutContext, episode: Episode, kept: int, *, draw: int, swap: Swap | None = None
) -> Episode:
    """Return the episode that begins with the first `kept` turns and is sampled anew from there.

    The same draw samples a call from the same seed, however many turns are kept, so that
    differences between two numbers of kept turns are measured with common random numbers. `swap`
    may change what one of the later calls says. Nothing here is trained.
    """
    changes = "" if swap is None else f"{swap.path}{'sampled' if swap.text is None else 'set'}"
    again = _begin_again(episode, f"{kept}.{draw}{changes}")  # engines tell requests apart by id
    recorded = {turn.path: turn for turn in episode.turns[:kept]}
    return await play_episode(context, again, swap=swap, recorded=recorded, draw=draw)


def _begin_again(episode: Episode, name: str) -> Episode:
    """Return the episode before its first turn, with its task and seed."""
    again = replace(episode, id=f"{episode.id}~{name}", turns=[], rewards={}, scores={}, metrics={})
    again.judged_score, again.error, again.answer = None, None, ""
    again.is_truncated = again.is_mistake = False
    return again


async def play_episode(
    context: RolloutContext,
    episode: Episode,
    *,
    swap: Swap | None = None,
    recorded: dict[tuple[int, ...], Turn] | None = None,
    draw: int | None = None,
) -> Episode:
    started = time.monotonic()
    key = ("call",) if draw is None else ("call", draw)
    team = Team(
        context.agents,
        episode=episode,
        call_seed=derive_seed(episode.seed, *key),
        swap=swap,
        recorded=recorded,
        tries_out=context.manner.tries_out,
        candidates=context.workflow.candidates,
    )
    with call_tree.enter_scope((), barrier=context.barrier):
        try:
            async with asyncio.timeout(context.timeout_s):
                await _run(context, episode, team)
        except BaseException as error:  # the boundary to user code: a bad rollout is data
            if _is_from_outside(error):
                raise
            cause = first_error(error)
            if isinstance(cause, RunEndingError):
                raise cause from error
            location = locate_error(cause)
            message = str(cause)
            if isinstance(cause, TimeoutError) and not message:
                took = time.monotonic() - started
                message = (
                    f"not ended after {took:.3g} s (rollout.timeout_s is {context.timeout_s:g})"
                )
            episode.error = f"{type(cause).__name__}: {message}" + (
                f" ({location})" if location else ""
            )
            episode.is_mistake = isinstance(cause, MISTAKES)
    _order_turns(episode)
    episode.metrics["wall_s"] = time.monotonic() - started
    return episode


async def _run(context: RolloutContext, episode: Episode, team: Team) -> None:
    world = context.environment.open(episode.task, seed=derive_seed(episode.seed, "world"))
    async with AsyncExitStack() as stack:
        stack.push_async_callback(world.close)
        team.enter(OpenTools(world, derive_seed(episode.seed, "tools"), stack))
        followers = _followers(context, episode, world, stack)
        team.set_followers(list(followers.values()))
        team.saw(await _observed(world))
        answer = await _answer(context, episode, team, world)
        episode.answer = check_text(answer, workflow=context.workflow.play)
        if isinstance(answer, Turn) and answer.finish == "length":
            episode.is_truncated = True  # a world may distrust an answer that was cut
        _order_turns(episode)
        episode.scores = await _scores(context, episode, world)
        for name, (reward, weight) in context.rewards.items():
            result = followers.get(name, reward)(episode, world)
            paid = await await_user(result, what=f"reward {name!r}", call=reward)
            checked = check_numbers(
                paid, names=context.agents, what=f"reward {name!r}", call=reward
            )
            for owner, value in checked.items():
                episode.metrics[f"reward/{name}/{owner}"] = value
                episode.rewards[owner] = episode.rewards.get(owner, 0.0) + weight * value


def _followers(
    context: RolloutContext, episode: Episode, world: World, stack: AsyncExitStack
) -> dict[str, Follower]:
    """Start the rewards that see each action; they end with the episode."""
    followers: dict[str, Follower] = {}
    for name, (reward, _) in context.rewards.items():
        candidate: object = reward
        if isinstance(candidate, Follows):
            followers[name] = candidate.follow(episode, world)
    for follower in followers.values():
        stack.callback(follower.close)
    return followers


async def _observed(world: World) -> Observation:
    observation = await await_user(world.reset(), what="reset", call=world.reset)
    return check_observation(observation, call=world.reset)


async def _answer(context: RolloutContext, episode: Episode, team: Team, world: World) -> Any:
    """Return the workflow's answer; None where the talk outgrew a model's context.

    That is the team's own doing, so the episode counts as one that was cut: leaving it out would
    praise a team for every conversation that it does not end.
    """
    try:
        answer = await context.workflow(team, episode.task, world, **context.options)
    except Exception as error:
        if not episode.turns or not isinstance(first_error(error), ContextFullError):
            raise
        episode.count("context_full")
        episode.is_truncated = True
        return None
    _check_choices(episode)
    return answer


async def _scores(context: RolloutContext, episode: Episode, world: World) -> dict[str, float]:
    if is_scored_by_steps(world):
        # Turns have been paid already, so nobody is paid for the sum of it.
        episode.judged_score = sum(sum(turn.world_rewards.values()) for turn in episode.turns)
        return {}
    try:
        scores = await await_user(world.score(episode), what="score", call=world.score)
    except ValueError:
        if "count/context_full" not in episode.metrics:
            raise
        scores = {"team": 0.0}  # a world that cannot score what did not end
    return check_numbers(scores, names=context.agents, what="score", call=world.score)


def _is_from_outside(error: BaseException) -> bool:
    """Return whether the run itself is told to end: by Ctrl-C, or because this very task is
    cancelled.

    User code may raise CancelledError, SystemExit or GeneratorExit too.
    """
    task = asyncio.current_task()
    cancelled = task is not None and task.cancelling() > 0
    return isinstance(error, KeyboardInterrupt) or (
        cancelled and isinstance(error, asyncio.CancelledError)
    )


def _staleness(group: Group, versions: dict[str, int]) -> int:
    turns = (turn for episode in group for turn in episode.turns)
    return max((turn_staleness(turn, versions) for turn in turns), default=0)


def turn_staleness(turn: Turn, versions: dict[str, int]) -> int:
    """Count updates of a turn's policy since the turn's oldest token was sampled.

    0 if nothing is updated, and if earlier weights were to sample it.
    """
    if turn.policy not in versions or turn.versions is None or turn.sampled_by:
        return 0
    return versions[turn.policy] - int(turn.versions.min())


def _order_turns(episode: Episode) -> None:
    """Sort the turns by path, which no latency can change; `index` counts an agent's earlier
    played turns.
    """
    episode.turns.sort(key=lambda turn: turn.path)
    count: Counter[str] = Counter()
    for number, turn in enumerate(episode.turns):
        before = episode.turns[number - 1] if number else None
        if turn.candidate and before is not None and before.path[:-1] == turn.path[:-1]:
            turn.index = before.index  # candidates of one call share it
        else:
            turn.index = count[turn.agent]
        count[turn.agent] += turn.chosen


def _check_choices(episode: Episode) -> None:
    candidates = [turn for turn in episode.turns if turn.candidate is not None]
    played = {turn.path[:-1] for turn in candidates if turn.chosen}
    for turn in candidates:
        if turn.path[:-1] not in played:
            raise ValueError(f"the workflow drew candidates of {turn.agent!r} and chose none")
